"""Saves in the background: training waits for a copy in memory at most, and another process uploads it.

Each rank copies its part into its arena, seals it and orders its uploader; once all parts are durable, rank 0 appends
the commit to the log. Staged, durable and committed are three states: only a committed save is visible to other runs.

arena      separate memory for a rank's part: filled by the trainer, read by the process that uploads
sealed     what an arena contains, and the label that says so
uploader_messages  the messages between the trainer and that process
part       writes a part under a name that other processes may write it under, too
uploader   that process
uploading  the trainer's side of it: orders, words, its end
copies     the arena and that process as the machine sees them, by numbers and events
rank0      rank 0's requests to the store, in a thread
machine    who decides: one per rank. Its values are in events, vector and state, its rules in this_rank (copy, upload,
           arena), agreeing (the words of all ranks), committing (rank 0) and leaving (the time that is left)

The machine is pure. The shell of saves drives it:

    state = begin(writer, rank)               # `writer` is the mark of rank 0's entries
    state, actions = step(state, event)       # at every event; has no side effects and no clock
    words(state)                              # what a rank puts into every vector and every gather

The shell carries out the actions in order and feeds the events. Any event may come in any state: the machine ignores
meaningless ones. A save has a number, equal on all ranks, and a name, which no other save has. Every word about it says
the name: a word of another save is ignored, however late it comes.

What holds, whatever dies, freezes, is late or refuses:

* A save begins only where all ranks have read that no arena is in use. No rank begins or skips one by itself.
* No process writes an arena while another may read it: the reader has released it, or was killed and reaped.
* What has failed on one rank has failed on all. What is durable on all is committed by rank 0, off the training thread.
* An append without an answer is repeated until it has one; no save begins and no newer run opens before that. It stays
  unanswered only where the time to leave is over.
* Hooks run after the log's answer, by rank 0's word, on all ranks at the same boundary.
* A save that failed or was dropped for a hand-over is owed: it is repeated at the next batch request at which no save
is in progress.
  Two saves in a row are never dropped for hand-overs.
* A save by the clock or by steps is skipped while another one is under way. For any other save the ranks stand until
  that one is settled, and then save this very step.

`Agreed`, `AtBoundary`, `Stood`, `Streamed`, `Stops`, `TrainsOn`, `HandsOver` and `Leaves` come at the same call on all
ranks, with the same values; so do the actions that they lead to, except those on a rank's own uploader and arena, and
those of rank 0:

    event                  fed by the shell when
    Agreed(words)          a vector of all ranks was read
    AtBoundary(...)        the ranks are where a save may begin
    Stood(words, late)     the ranks stand (`stands`), and have gathered their words
    Streamed(done)         the blocking save that Stream asked for is over
    Stops                  all old ranks have stopped for a hand-over; then Stood while they stand
    TrainsOn, HandsOver    the hand-over was aborted; the newer run has taken over. A rank that
                           stays begins again with `renewed`
    Leaves(...)            the ranks leave; gathered and fed again until Left, Close or GiveUp
    Ends                   this process ends
    Room(usable)           there is an arena, or none. Before the first one saves stream
    Sealed, CopyFailed, CopyChanged   answer Copy
    Durable, Failed, Released     words of an uploader
    UploaderEnded, UploaderStuck  an uploader is gone and reaped; it was killed and cannot be reaped in time
    Late(name)             a save's deadline, which began once the part was copied, has passed
    Prepared, NotPrepared  answer Prepare, always one of them
    Appended, NoAnswer, CommitFenced  answer Append, always one of them

    action                 the shell
    Copy                   copies and seals this rank's part, or has a thread do it while training goes on
    StartUpload, KillUploader  orders the uploader with this number, and begins it if needed; kills and reaps it
    Prepare                rank 0: compares all parts, writes the manifest
    Append                 rank 0: appends the commit; with `again` after a pause
    Abandon                rank 0: the folder may be deleted, because no append that names it was sent
    TellCommitted          hooks, reports, the commit's number; the position is saved only if nothing came after it
    TellFailed, TellMissed counts and tells a failure, unless the state has only changed while it was copied; tells the
                           script that this very step could not be saved
    Stream                 a blocking save from the live tensors
    RefuseHandover         ends the attempt
    StopFenced             raises Fenced on all ranks
    Close, GiveUp, Left    the turn is over: the log has Closed, the end is unknown, or the log says it

A save of `Wish.NOW` (the script or a person wants it) is made by blocking, because they rely on a commit that exists
when training goes on, and its errors are raised where the script is. An uploader and its arena end with their trainer:
no save goes over to a newer run or is taken up after a crash.
"""
