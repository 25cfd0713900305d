"""What fastbuffer costs beside what it replaces. `python -m benches.report` measures all of it."""
