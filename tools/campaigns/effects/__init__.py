"""Effects that are counted: receivers, what each action promises, and what a crash may leave of it."""
