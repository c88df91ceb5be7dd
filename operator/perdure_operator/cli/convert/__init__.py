"""`perdure convert`: a training job of another system becomes a TrainingJob, and remarks say what that changes.

A pure function from what a file held to a manifest and remarks. Every field of a source stands in `tables`; one that
does not is remarked. To add a source, add its table, and to `sources` a function that counts its members and finds its
template.

documents  text of a file to its objects, bounded
tables     for each source: field, and where it goes
fields     what a table's rows can say, and the walk along one
torchrun   the options of torchrun, in a command line or in a container's command
template   a pod template becomes one of a TrainingJob
members    how many members and processes a source means; the Job or JobSet in it
trainjob   a TrainJob and its runtime
sources    the other sources, and the whole conversion
checking   the CRD's own schema and model, applied to the result
command    the command line
"""
