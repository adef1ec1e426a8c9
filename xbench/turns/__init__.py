"""Jobs that share devices in turns: the rules, the arbiter of a host, its client, and the steps of a job."""
