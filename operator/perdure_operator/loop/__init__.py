"""The only kopf-aware code: events fill the cache and mark jobs as due, workers run one round at a time per job.

schedule   which job is due when; pure
queue      the schedule with a clock to wait on
watch      kopf's events -> cache and queue; kopf's settings
guard      what the API server sends made harmless for kopf
concern    which jobs a change is about; pure
orphans    budgets that have outlived their job
worker     one round: observe, decide, act, and when to look again
install    whether the CRD is there and new enough
evictions  whether the API server has Evictions that can be answered
leader     election, resync and workers; knows no kopf
operator   everything put together: login, start and stop
heap       garbage collections that stop nobody
logs       log lines as JSON
"""
