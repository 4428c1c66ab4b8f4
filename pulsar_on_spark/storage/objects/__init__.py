"""Object stores: what the engine needs of one, the implementation over obstore, the probe, and profiles of options.

Start reading at `contract`. A request whose reply is lost may have been carried out, so each method settles that before
it answers, or says that the outcome is unknown. "The store cannot be reached" is never "the object is not there".
"""
