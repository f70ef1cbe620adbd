"""What every campaign is, how it is performed, broken on purpose and told."""
