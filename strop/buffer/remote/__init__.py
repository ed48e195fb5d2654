"""A queue as a process of its own, which explorer and trainer reach over sockets.

    explorer, trainer                        buffer process
      queue    waits                           server   serves each connection
        client   sends requests  <--socket-->    store    groups and their backup

Any of the three processes may be killed at any moment. Each reader and writer joins under a session of its
own, and joins again whenever a reply was lost: it then lists the groups that it holds, and all others are
queued again.
"""
