"""A launch on a clock that the test turns: hosts, ranks, agents and links, without processes."""

from xbench.launch.monitor import COLLECT_S, AgentWatch, Monitor, Probes, RankWatch
from xbench.rank.events import BlockTimed, RankFailed, RankStarted
from xbench.rank.journal import Journal, JournalReader

SILENCE_S = 60.0
START_S = 180.0


class World:
    """Two hosts of one rank, one or two jobs, a clock, a process table and links, all in the test's hand."""

    def __init__(self, folder, jobs=1, hosts=2, ranks=1):
        self.now = 1000.0
        self.states = {}
        self.fault = None
        self.full = False
        self.events = []
        self.logs = {}
        self.folder = folder
        self.journals = {}
        agents, watches = [], []
        for job in range(jobs):
            for host in range(hosts):
                self.logs[job, host] = ""
                agents.append(AgentWatch(host, lambda key=(job, host): self.logs[key], job))
                for local in range(ranks):
                    reader = JournalReader(folder, job, host * ranks + local)
                    watches.append(RankWatch(reader, host, shared=jobs > 1))
        probes = Probes(
            clock=lambda: self.now,
            alive=lambda rank: self.states.get(rank.pid, "R") is not None,
            state=lambda rank: self.states.get(rank.pid, "R"),
            link_fault=lambda: self.fault,
            disk_full=lambda: self.full,
        )
        take = lambda job, rank, event: self.events.append((job, rank, event.event))  # noqa: E731
        self.notes = []
        noted = lambda job, rank, at_s, text: self.notes.append((job, rank, text))  # noqa: E731
        self.monitor = Monitor(watches, agents, take, SILENCE_S, probes, start_s=START_S, on_note=noted)

    def hello(self, rank, job=0):
        journal = self.journals[job, rank] = Journal(self.folder, job, rank)
        journal.write(RankStarted(rank=rank, job=job, host=rank, pid=self.pid(rank, job)))
        return journal

    def hello_all(self, ranks=2, jobs=1):
        for job in range(jobs):
            for rank in range(ranks):
                self.hello(rank, job)
        assert self.monitor.poll() is None

    @staticmethod
    def pid(rank, job=0):
        return 100 + 10 * job + rank

    def die(self, rank, job=0):
        self.states[self.pid(rank, job)] = None

    def agent(self, host, code, job=0):
        next(a for a in self.monitor.agents if (a.job, a.host) == (job, host)).code = code

    def wait(self, seconds):
        """Let time pass and look; the verdict."""
        self.now += seconds
        return self.monitor.poll()

    def cause(self):
        """The verdict's error after the collecting second."""
        assert self.monitor.poll() is None
        return self.wait(COLLECT_S).error


class Store:
    """A store in which ranks meet, as a dictionary. It may go away."""

    def __init__(self):
        self.kept = {}
        self.gone = False

    def _there(self):
        if self.gone:
            raise RuntimeError("Connection was likely closed")
        return self.kept

    def set(self, key, value):
        self._there()[key] = value

    def get(self, key):
        return self._there()[key].encode()

    def check(self, keys):
        return all(key in self._there() for key in keys)

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def delete_key(self, key):
        return self._there().pop(key, None) is not None

    def add(self, key, value):
        self.set(key, str(int(self._there().get(key, "0")) + value))
        return int(self.kept[key])


def error(message, **fields):
    return RankFailed(message=message, traceback=f"Traceback\n{message}", **fields)


def block():
    return BlockTimed(mode="ddp", round=0, position=0, warmup=0, stamps=[0.0, 1.0])
