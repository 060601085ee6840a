"""All clients of a run: their requests, and which of them leave for good, or die and are replaced."""

from collections import Counter
from collections.abc import Callable
from random import Random

from fakes.simulated.machine import services
from fakes.simulated.machine.clock import MILLISECOND, EventQueue, SimulatedClock
from fakes.simulated.machine.fault_rates import FaultRates
from fakes.simulated.machine.fault_schedule import FAULTS_END_NS, FaultSchedule
from fakes.simulated.machine.network import Network
from fakes.simulated.scenario.client import SimulatedClient
from fakes.simulated.scenario.issued_requests import IssuedRequest, draw_issued_requests
from fakes.simulated.scenario.tenancy import Tenancy


class ClientPopulation:
    """All clients of a run; `create_clients` fills `clients`."""

    def __init__(
        self,
        draw: Random,
        rates: FaultRates,
        tenancy: Tenancy,
        network: Network,
        queue: EventQueue,
        clock: SimulatedClock,
        schedule: FaultSchedule,
        log: Callable[[str, str], None],
        counts: Counter[str],
    ) -> None:
        self.clients: list[SimulatedClient] = []
        self._random = draw
        self._rates = rates
        self._tenancy = tenancy
        self._network = network
        self._queue = queue
        self._clock = clock
        self._schedule = schedule
        self._log = log
        self._counts = counts

    @property
    def issued_requests(self) -> list[IssuedRequest]:
        """All requests of all clients."""
        return [issued for client in self.clients for issued in client.issued_requests]

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of any request."""
        return all(issued.over for issued in self.issued_requests)

    def create_clients(self) -> None:
        """Draw the clients, their requests, and when clients leave or die."""
        requests = []
        for number in range(self._rates.clients):
            issued_requests = draw_issued_requests(
                self._random, self._rates, self._tenancy, str(number), self._clock.now_ns, requests
            )
            requests += [issued.request for issued in issued_requests]
            self.clients.append(
                SimulatedClient(str(number), services.DOOR, self._network, self._queue, self._clock, issued_requests)
            )
        if len(self.clients) > 1 and self._random.random() < 0.2:
            self._queue.after(self._random.randint(0, FAULTS_END_NS), self._leave)
        for number in range(self._rates.client_deaths):
            self._queue.after(
                self._random.randint(0, FAULTS_END_NS), lambda number=number: self._start_successor(number)
            )  # type: ignore[misc]  # a default binds it

    def _start_successor(self, number: int) -> None:
        """Kill a client; its successor starts before the server gives its requests up, under the same name or a new one."""
        if self._schedule.over:
            return
        client = self._random.choice(self.clients)
        if client.alive:
            self._counts["death of client"] += 1
            self._log(client.name, "dies")
            name = client.name.removeprefix("client-")
            name = self._random.choice([name, f"{name}+{number}"])
            client.die(self._rates.between(0, 800 * MILLISECOND), name)

    def _leave(self) -> None:
        client = self.clients[-1]
        self._log(client.name, "is gone")
        client.leave()
