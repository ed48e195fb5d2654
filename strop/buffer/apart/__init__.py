"""A queue as a process of its own, which explorer and trainer reach over lines.

    explorer, trainer                       the buffer's process
      queue    waits                          desk     answers each line
        remote   asks            <--line-->     stock    what is there, and its backup

Any of the three may be killed at any moment. Each reader and writer joins under a session of its own, and
anew whenever an answer was lost: then it says which groups it holds, and all others are to be had again.
"""
