"""A batch, its accumulation and its learning rate that change while a job trains: every change is data.

adapt            what a script asks for: `perdure.Adapt`
decision         one decision: which batch, in which parts, at which factor of the rate; pure
decision_list    the decisions that a file gives, and those that a training has made
choosing         which decision is made: from a list, or from what is measured; pure
parts            which sample of which part of a batch goes to which rank; pure
part_gradients   finds that the gradient of a batch in parts is not that of the whole batch
adaptive_loader  the loader whose batches follow the decisions
scaled_rates     an optimizer's step at the decided rates, with the script's own before and after it
statistical_progress  how many samples of the script's own batch all steps together are worth
"""
