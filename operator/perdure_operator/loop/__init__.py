"""The only code that knows kopf: events fill the cache and mark jobs as due; workers run one round at a time per job.

schedule       which job is due when; pure
queue          the schedule with a clock to wait on
watch          kopf's events -> cache and queue; kopf's settings
guard          protects kopf from malformed API server output
affected_jobs  which jobs a change affects; pure
orphans        deletes budgets and templates that outlive their job
worker         one round: observe, decide, act, schedule the next
install        checks that the CRD is installed and new enough
verify         finds what is wrong with an installation
evictions      checks whether the API server serves Evictions
progress       shows in status what members report
pools          gives the jobs that share a pool their sizes
keys           keeps the operator's own certificates in one Secret
channels       tells living members where to report, and by which certificates
leader         election, resync and workers; knows no kopf
operator       assembles everything: login, start and stop
heap           keeps garbage collection from stopping the event loop
loop_lag       logs how late the event loop runs
logs           log lines as JSON
"""
