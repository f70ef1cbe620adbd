"""The mutation score: small mistakes are made in what decides, and the tests that belong to it have to notice."""
