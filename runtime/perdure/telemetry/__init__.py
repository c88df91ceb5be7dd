"""What a run tells of itself: the trace of its steps, and how long its beginning and end took."""
