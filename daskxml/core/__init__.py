"""What every room may use: errors, sparse arrays, bounded fields, files, hardware."""
