"""Shared by scenarios, demo and benches: starting a job from outside, watching it, and judging its evidence.

Evidence comes from outside: kubectl, the files in the S3 server's folder, the API server's audit log. Nothing here may
import perdure.session, perdure.loop.data or perdure.checkpoint, which are being judged.
"""
