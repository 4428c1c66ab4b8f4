"""Object stores: the contract, its implementations over obstore and in a local folder, the probe, and profiles.

Start reading at `contract`. A request whose reply is lost may have been carried out, so each method finds out before it
returns, or reports that the outcome is unknown. "The store cannot be reached" is never "the object is not there".
"""
