"""What was done to the records, and what it cost."""
