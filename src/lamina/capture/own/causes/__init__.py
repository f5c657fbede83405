"""Why a call that our own front end meets does not go into a graph."""
