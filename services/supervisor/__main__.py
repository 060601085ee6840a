"""Run the whole stack: `python -m noria.services.supervisor --config FILE`."""

from noria.proto.base import Service
from noria.services.supervisor.start_up import start
from noria.shared.process.service_process import main

if __name__ == "__main__":
    main(Service.SUPERVISOR, start)
