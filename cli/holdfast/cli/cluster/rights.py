"""The rights that the commands need in a cluster, as the API server names them, and the role that has each."""

from dataclasses import dataclass

GROUP = "holdfast.dev"


@dataclass(frozen=True, slots=True)
class Right:
    """One right. Those of our own kinds and of pods are needed in the job's namespace, the others in Holdfast's.

    `role` is how the chart's role is called, whose name begins with the installation's.
    """

    verb: str
    group: str
    resource: str
    role: str
    subresource: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        resource = f"{resource}.{self.group}" if self.group else resource
        named = f" {self.name}" if self.name else ""
        return f"the right to {self.verb} {resource}{named}, which {self.role} gives"


VIEW, ON_CALL = "the chart's ClusterRole ...-view", "the chart's ClusterRole ...-oncall"
READER = "the chart's Role ...-reader, in Holdfast's namespace,"
LIVE = "the chart's ClusterRole ...-live, where its value viewer.namespaces names that namespace,"
LIST_JOBS = Right("list", GROUP, "trainingjobs", VIEW)
GET_JOB = Right("get", GROUP, "trainingjobs", VIEW)
CREATE_INTERVENTION = Right("create", GROUP, "interventions", ON_CALL)
GET_POD_LOG = Right("get", "", "pods", VIEW, "log")
GET_INTERVENTION = Right("get", GROUP, "interventions", VIEW)


def get_watchdog(service: str) -> Right:
    """To ask the watchdog through the API server."""
    return Right("get", "", "services", READER, "proxy", service)


def create_token(account: str) -> Right:
    """To get the token that the watchdog asks for."""
    return Right("create", "", "serviceaccounts", READER, "token", account)


def create_namespace_token(account: str) -> Right:
    """To get a token that reads the jobs of one namespace: that of the account there."""
    return Right("create", "", "serviceaccounts", LIVE, "token", account)
