"""The TrainingJob object: its spec, its status, and the words both use. Imports nothing else of ours."""
