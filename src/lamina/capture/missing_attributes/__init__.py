"""What traced functions asked for and did not find: a graph is used again only while it still is not there."""
