"""What several test files share: slow definitions, small networks and runs, and the processes that tests start."""
