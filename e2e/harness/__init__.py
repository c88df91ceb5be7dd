"""What scenarios, demo and benches share: starting a job from outside, watching it, and judging what it left behind.

Evidence comes from outside: kubectl, the files in the S3 server's folder, the API server's audit log. Nothing here may
import perdure.session, perdure.loop.data or perdure.checkpoint: what they did is what is being judged.
"""
