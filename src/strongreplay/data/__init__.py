"""From files and arrays to streams of tasks."""
