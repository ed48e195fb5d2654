"""Weight transfer from the trainer's memory to the explorer's: requests by socket, tensors by a collective.

    trainer                                      explorer
      sender           holds versions              receiver   requests and unpacks versions
        version_store  packed versions, signals
        server         requests    <--- socket --->
                       buckets     <--- process group of the two: gloo or NCCL --->
                                                engine     the same, if its processes receive weights themselves

Either process may be killed at any moment. Its peer notices that the connection is lost, and reconnects after
the restart.
"""
