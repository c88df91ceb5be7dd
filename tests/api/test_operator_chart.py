"""The chart as helm renders it and as the API server takes it, under restricted pod security."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.cluster.apiserver import ApiServer
from tests.api.conftest import REPOSITORY, SYSTEM, Installed

pytestmark = pytest.mark.api
CHART = REPOSITORY / "helm" / "perdure"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
PREVIOUS = REPOSITORY / "tests" / "upgrade" / "previous" / "chart"


def helm(tools: dict[str, Path], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(tools["helm"] / "helm"), *words]
    return subprocess.run(argv, check=False, capture_output=True, text=True)


def rendered(tools: dict[str, Path], *values: str) -> list[dict[str, Any]]:
    done = helm(tools, "template", "perdure", str(CHART), f"--namespace={SYSTEM}", *(f"--set={one}" for one in values))
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def test_helm_has_no_complaint(tools: dict[str, Path]) -> None:
    done = helm(tools, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_an_upgrade_that_reuses_the_values_of_a_chart_without_reports_is_rendered(tools: dict[str, Path]) -> None:
    assert "report" not in str(rendered(tools, "reports=null"))
    assert of_kind(rendered(tools, "reports=null"), "Secret") == []
    (service,) = of_kind(rendered(tools, "reports.port=null", "reports.certificateSecret=null"), "Service")
    assert service["metadata"]["name"] == "perdure-operator-reports"
    assert service["spec"]["ports"][0]["port"] == 8444


@pytest.mark.parametrize(
    ("values", "tag"), [((), VERSION), (("image.tag=null",), VERSION), (("image.tag=dev",), "dev")]
)
def test_without_a_tag_the_image_is_of_the_charts_own_version(
    tools: dict[str, Path], values: tuple[str, ...], tag: str
) -> None:
    (deployment,) = of_kind(rendered(tools, *values), "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"perdure-operator:{tag}"


@pytest.mark.parametrize(
    "value",
    [
        "replicas=0",
        "logLevel=loud",
        "image.repository=",
        "image.tag=1",
        "nonsense=1",
        "leaseSeconds=1",
        "signals=cordon",
        "metrics.port=80",
        "reports.port=80",
    ],
)
def test_a_value_that_makes_no_sense_is_refused(tools: dict[str, Path], value: str) -> None:
    done = helm(tools, "template", "perdure", str(CHART), f"--set={value}")
    assert done.returncode != 0
    assert value.partition("=")[0].rpartition(".")[2] in done.stderr


@pytest.mark.parametrize(
    "values", [(), ("metrics.enabled=true", "metrics.certificateSecret=tls", "reports.certificateSecret=tls")], ids=repr
)
def test_the_operators_pods_pass_restricted_pod_security(
    tools: dict[str, Path], api_server: ApiServer, installed: Installed, namespace: str, values: tuple[str, ...]
) -> None:
    (deployment,) = of_kind(rendered(tools, *values), "Deployment")
    template = deployment["spec"]["template"]
    template["spec"]["serviceAccountName"] = "default"
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"], "metadata": template["metadata"]}
    pod["metadata"] |= {"name": "operator", "namespace": namespace}
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    api_server.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod))


def test_the_pod_of_helm_test_is_run_like_the_operator_and_counts_as_none(
    tools: dict[str, Path], api_server: ApiServer, installed: Installed, namespace: str
) -> None:
    documents = rendered(tools, "nodeSelector.pool=system", "imagePullSecrets[0].name=registry", "leaseSeconds=20")
    (pod,), (deployment,) = of_kind(documents, "Pod"), of_kind(documents, "Deployment")
    operator = deployment["spec"]["template"]["spec"]
    for field in ("serviceAccountName", "nodeSelector", "imagePullSecrets", "securityContext"):
        assert pod["spec"][field] == operator[field]
    (container,), (ran,) = pod["spec"]["containers"], operator["containers"]
    for field in ("image", "imagePullPolicy", "command", "resources", "securityContext"):
        assert container[field] == ran[field]
    assert container["args"][0] == "verify"
    assert set(container["args"][1:]) <= set(ran["args"])
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for document in [*of_kind(documents, "Service"), *of_kind(documents, "PodDisruptionBudget"), deployment]:
        selector = document["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert not wanted.items() <= pod["metadata"]["labels"].items(), f"{document['kind']} takes it for an operator"
    pod["spec"]["serviceAccountName"] = "default"
    pod["metadata"]["namespace"] = namespace
    api_server.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    api_server.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump(pod))


def test_why_the_operator_did_not_start_is_reported_by_its_pod(tools: dict[str, Path]) -> None:
    """A wrong row of signals is one line on stderr: kubectl describe shows it."""
    (deployment,) = of_kind(rendered(tools), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_every_object_is_taken_by_the_api_server(
    tools: dict[str, Path], api_server: ApiServer, installed: Installed
) -> None:
    documents = rendered(tools, "watchNamespace=default", *METRICS, "reports.enabled=true")
    assert {"Secret", "Service", "Role"} <= {document["kind"] for document in documents}
    api_server.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(documents))


def test_rows_of_signals_reach_the_operator_as_they_are_written(tools: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"name": "cordon", "reaction": "Ignore"}, {"name": "spot", "source": "Taint", "key": "a/b", "value": "1"}]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"signals": rows, "podAnnotations": {"team": "x"}}))
    done = helm(tools, "template", "perdure", str(CHART), f"--namespace={SYSTEM}", f"--values={values}")
    documents = [document for document in yaml.safe_load_all(done.stdout) if document]
    (config,), (deployment,) = of_kind(documents, "ConfigMap"), of_kind(documents, "Deployment")
    assert yaml.safe_load(config["data"]["signals.yaml"]) == rows
    template = deployment["spec"]["template"]
    (volume,), container = template["spec"]["volumes"], template["spec"]["containers"][0]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    assert "--signals=/etc/perdure/signals.yaml" in container["args"]
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/etc/perdure", "readOnly": True}]
    assert set(template["metadata"]["annotations"]) == {"team", "perdure.dev/signals"}


def test_without_rows_of_signals_nothing_is_mounted(tools: dict[str, Path]) -> None:
    documents = rendered(tools)
    (deployment,) = of_kind(documents, "Deployment")
    (config,) = of_kind(documents, "ConfigMap")
    assert yaml.safe_load(config["data"]["signals.yaml"]) == []
    assert config["metadata"]["labels"]["app.kubernetes.io/version"]
    assert "volumes" not in deployment["spec"]["template"]["spec"]
    assert not any("signals" in word for word in deployment["spec"]["template"]["spec"]["containers"][0]["args"])


def test_claims_of_karpenter_are_read_only_where_that_is_wanted(tools: dict[str, Path]) -> None:
    for values, wanted in (((), False), (("nodeClaims=true",), True), (("nodeClaims=true", "watchNamespace=a"), True)):
        documents = rendered(tools, *values)
        rules = [rule for role in of_kind(documents, "ClusterRole") for rule in role["rules"]]
        claims = [rule["verbs"] for rule in rules if rule["apiGroups"] == ["karpenter.sh"]]
        (deployment,) = of_kind(documents, "Deployment")
        args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        assert (claims, "--node-claims" in args) == ([["get"]] if wanted else [], wanted)


def test_evictions_are_answered_unless_the_chart_says_otherwise(tools: dict[str, Path]) -> None:
    def rules_and_words(*values: str) -> tuple[list[tuple[str, ...]], list[str]]:
        documents = rendered(tools, "userRoles=false", *values)
        roles = of_kind(documents, "ClusterRole") + of_kind(documents, "Role")
        rules = [rule for role in roles for rule in role["rules"] if rule["apiGroups"] == ["lifecycle.k8s.io"]]
        (deployment,) = of_kind(documents, "Deployment")
        words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        found = [(*rule["resources"], *rule["verbs"]) for rule in rules]
        return found, [word for word in words if "eviction" in word]

    rights = [("evictions", "list", "watch"), ("evictions/status", "patch")]
    assert rules_and_words() == (rights, [])
    assert rules_and_words("watchNamespace=team") == (rights, [])
    assert rules_and_words("evictionRequests=false") == ([], ["--no-eviction-requests"])


def test_one_namespace_needs_no_rights_on_jobs_elsewhere(tools: dict[str, Path]) -> None:
    (everywhere,) = of_kind(rendered(tools, "watchNamespace=team", "userRoles=false"), "ClusterRole")
    resources = [["nodes"], ["customresourcedefinitions"], ["tokenreviews"]]
    assert [rule["resources"] for rule in everywhere["rules"]] == resources
    roles = {role["metadata"]["namespace"] for role in of_kind(rendered(tools, "watchNamespace=team"), "Role")}
    assert roles == {"team", SYSTEM}


def test_users_of_a_namespace_may_use_training_jobs_as_they_may_use_others(tools: dict[str, Path]) -> None:
    roles = {role["metadata"]["name"]: role for role in of_kind(rendered(tools), "ClusterRole")}
    assert set(roles) == {"perdure-operator", "perdure-edit", "perdure-view", "perdure-kubectl"}
    aggregated = {
        name: {label.rpartition("-")[2] for label in role["metadata"]["labels"] if "/aggregate-to-" in label}
        for name, role in roles.items()
    }
    assert aggregated == {
        "perdure-operator": set(),
        "perdure-edit": {"admin", "edit"},
        "perdure-view": {"admin", "edit", "view"},
        "perdure-kubectl": set(),
    }
    verbs = {name: {verb for rule in role["rules"] for verb in rule["verbs"]} for name, role in roles.items()}
    assert verbs["perdure-view"] == {"get", "list", "watch"}
    assert verbs["perdure-kubectl"] <= {"get", "list", "watch"}
    assert "create" in verbs["perdure-edit"]
    assert "perdure-edit" not in str(rendered(tools, "userRoles=false"))


def rules_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rule for role in of_kind(documents, "ClusterRole") + of_kind(documents, "Role") for rule in role["rules"]]


def test_nothing_may_change_nodes_and_no_secret_may_be_read_but_the_operators_own(tools: dict[str, Path]) -> None:
    documents = rendered(tools)
    rules = rules_of(documents)
    assert all("*" not in (*rule["verbs"], *rule.get("resources", ())) for rule in rules)
    assert [rule["verbs"] for rule in rules if "nodes" in rule["resources"]] == [["get", "list", "watch"], ["list"]]
    own = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["perdure-operator-keys"]}
    assert [rule for rule in rules if "secrets" in rule["resources"]] == [own | {"verbs": ["get", "update"]}]
    (role,) = [role for role in of_kind(documents, "Role") if "secrets" in str(role["rules"])]
    (binding,) = [
        one for one in of_kind(documents, "RoleBinding") if one["roleRef"]["name"] == role["metadata"]["name"]
    ]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == SYSTEM
    subject = {"kind": "ServiceAccount", "name": "perdure-operator", "namespace": SYSTEM}
    assert binding["subjects"] == [subject]


@pytest.mark.parametrize("value", ["reports.enabled=false", "reports.certificateSecret=tls", "reports=null"])
def test_no_secret_may_be_read_at_all_where_the_operator_keeps_no_certificates(
    tools: dict[str, Path], value: str
) -> None:
    documents = rendered(tools, value)
    assert not [rule for rule in rules_of(documents) if "secrets" in rule["resources"]]
    assert of_kind(documents, "Secret") == []


def test_the_operator_has_the_priority_that_is_named_and_else_the_clusters_own(tools: dict[str, Path]) -> None:
    for values, wanted in (((), None), (("priorityClassName=system-cluster-critical",), "system-cluster-critical")):
        (deployment,) = of_kind(rendered(tools, *values), "Deployment")
        assert deployment["spec"]["template"]["spec"].get("priorityClassName") == wanted


def test_a_class_for_joiners_preempts_no_pod_and_is_seen_by_autoscalers(tools: dict[str, Path]) -> None:
    (given,) = of_kind(rendered(tools), "PriorityClass")
    assert given["metadata"]["name"] == "perdure-joiner"
    assert (given["value"], given["preemptionPolicy"], given["globalDefault"]) == (0, "Never", False)
    (named,) = of_kind(rendered(tools, "joinerPriorityClass.name=grows"), "PriorityClass")
    assert named["metadata"]["name"] == "grows"
    assert of_kind(rendered(tools, "joinerPriorityClass.create=false"), "PriorityClass") == []


METRICS = ("metrics.enabled=true", "metrics.port=9443", "reports.enabled=false")
MONITORED = (*METRICS, "metrics.serviceMonitor.enabled=true", "metrics.alerts.enabled=true")


def test_without_metrics_there_is_nothing_of_them(tools: dict[str, Path]) -> None:
    for values in ((), ("metrics.serviceMonitor.enabled=true", "metrics.alerts.enabled=true")):
        assert "metrics" not in str(rendered(tools, *values))
        assert "reviews" not in str(rendered(tools, "reports.enabled=false", *values))


def test_metrics_have_a_port_a_service_a_reader_and_the_right_to_ask_who_reads(tools: dict[str, Path]) -> None:
    documents = rendered(tools, *METRICS)
    (deployment,), (service,) = of_kind(documents, "Deployment"), of_kind(documents, "Service")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--metrics-port=9443" in container["args"]
    assert {"name": "metrics", "containerPort": 9443} in container["ports"]
    assert service["spec"]["ports"][0]["port"] == 9443
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    roles = {role["metadata"]["name"]: role["rules"] for role in of_kind(documents, "ClusterRole")}
    assert roles["perdure-operator-metrics-reader"] == [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    reviews = {"tokenreviews", "subjectaccessreviews"}
    asked = [rule for rule in roles["perdure-operator"] if reviews & set(rule.get("resources", []))]
    assert [rule["verbs"] for rule in asked] == [["create"], ["create"]]
    assert not of_kind(documents, "ServiceMonitor") + of_kind(documents, "PrometheusRule")


def test_prometheus_operators_objects_are_there_where_they_are_wanted(tools: dict[str, Path]) -> None:
    documents = rendered(
        tools, *MONITORED, "metrics.serviceMonitor.labels.release=x", "metrics.alerts.labels.release=y"
    )
    (monitor,), (rule,) = of_kind(documents, "ServiceMonitor"), of_kind(documents, "PrometheusRule")
    (service,) = of_kind(documents, "Service")
    assert (monitor["metadata"]["labels"]["release"], rule["metadata"]["labels"]["release"]) == ("x", "y")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["port"], endpoint["honorLabels"]) == ("https", "metrics", True)
    assert endpoint["tlsConfig"] == {"insecureSkipVerify": True}
    own, shipped = 'namespace="perdure-system", service="perdure-operator-metrics"', (CHART / "alerts.yaml").read_text()
    assert service["metadata"]["name"] == "perdure-operator-metrics"
    assert str(rule["spec"]).count(f"{{{own}") == shipped.count("perdure_operator_") == 7
    without = str(rule["spec"]).replace(f"{{{own}}}", "").replace(f"{own}, ", "")
    assert without == str(yaml.safe_load(shipped))


def test_alerts_without_the_charts_service_monitor_take_the_operators_series_whatever_their_labels(
    tools: dict[str, Path],
) -> None:
    (rule,) = of_kind(rendered(tools, *METRICS, "metrics.alerts.enabled=true"), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text())


def test_a_certificate_of_a_secret_is_mounted_and_checked(tools: dict[str, Path]) -> None:
    documents = rendered(tools, *MONITORED, "metrics.certificateSecret=tls")
    (deployment,), (monitor,) = of_kind(documents, "Deployment"), of_kind(documents, "ServiceMonitor")
    spec = deployment["spec"]["template"]["spec"]
    assert spec["volumes"] == [{"name": "metrics-certificate", "secret": {"secretName": "tls"}}]
    (mount,) = spec["containers"][0]["volumeMounts"]
    assert f"--metrics-certificate={mount['mountPath']}" in spec["containers"][0]["args"]
    config = monitor["spec"]["endpoints"][0]["tlsConfig"]
    assert config["ca"] == {"secret": {"name": "tls", "key": "ca.crt"}}
    assert config["serverName"] == "perdure-operator-metrics.perdure-system.svc"


def test_without_reports_there_is_nothing_of_them(tools: dict[str, Path]) -> None:
    assert "report" not in str(rendered(tools, "reports.enabled=false"))


def test_reports_have_a_port_a_service_an_empty_secret_and_the_right_to_ask_whose_token_it_is(
    tools: dict[str, Path],
) -> None:
    documents = rendered(tools, "reports.port=9444")
    (deployment,), (service,) = of_kind(documents, "Deployment"), of_kind(documents, "Service")
    (secret,) = of_kind(documents, "Secret")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    name = f"{service['metadata']['name']}.{SYSTEM}.svc"
    assert {"--reports-port=9444", f"--reports-url=https://{name}:9444"} <= set(container["args"])
    assert f"--reports-secret={secret['metadata']['name']}" in container["args"]
    assert {"name": "reports", "containerPort": 9444} in container["ports"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert service["spec"]["ports"][0]["appProtocol"] == "tls"
    assert "volumes" not in spec
    assert {"data", "stringData", "immutable"}.isdisjoint(secret)
    kept = {"helm.sh/resource-policy": "keep", "argocd.argoproj.io/sync-options": "Prune=false"}
    assert secret["metadata"]["annotations"] == kept
    (everywhere,) = [
        role for role in of_kind(documents, "ClusterRole") if role["metadata"]["name"] == "perdure-operator"
    ]
    reviews = [rule for rule in everywhere["rules"] if "tokenreviews" in rule["resources"]]
    assert [rule["verbs"] for rule in reviews] == [["create"]]
    assert "subjectaccessreviews" not in str(everywhere)


def test_the_chart_is_the_same_each_time_it_is_rendered(tools: dict[str, Path]) -> None:
    """Argo CD renders it again and again, without a look at the cluster."""
    assert rendered(tools) == rendered(tools)


def test_a_secret_for_reports_that_is_named_is_mounted_and_none_is_made(tools: dict[str, Path]) -> None:
    documents = rendered(tools, "reports.certificateSecret=tls")
    (deployment,) = of_kind(documents, "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    (mount,) = container["volumeMounts"]
    assert (volume["secret"]["secretName"], volume["name"]) == ("tls", mount["name"])
    assert f"--reports-certificate={mount['mountPath']}" in container["args"]
    assert "--reports-secret" not in str(container["args"])
    assert of_kind(documents, "Secret") == []


class Release:
    """The chart, installed in a namespace of its own."""

    def __init__(self, tools: dict[str, Path], server: ApiServer, namespace: str) -> None:
        self.tools, self.server, self.namespace = tools, server, namespace

    def helm(self, *words: str, chart: Path = CHART) -> None:
        at = (f"--namespace={self.namespace}", f"--kubeconfig={self.server.kubeconfig}")
        installs = (str(chart), "--install", "--skip-crds") if words[0] == "upgrade" else ()
        argv = [str(self.tools["helm"] / "helm"), words[0], "kept", *installs, *words[1:], *at]
        subprocess.run(argv, check=True, capture_output=True, text=True, env=self.server.env)

    def secret(self, name: str = "kept-operator-keys") -> dict[str, Any]:
        found = self.server.kubectl("get", "secret", name, f"--namespace={self.namespace}", "--output=json")
        raw: dict[str, Any] = json.loads(found.stdout)
        return raw

    def write(self) -> None:
        """As the operator does."""
        path = f"/api/v1/namespaces/{self.namespace}/secrets/kept-operator-keys"
        self.server.ask(path, "PUT", self.secret() | {"data": {"keys.json": "a2V5cw=="}})

    @property
    def has_keys(self) -> bool:
        return bool(self.secret().get("data") == {"keys.json": "a2V5cw=="})


@pytest.fixture
def release(tools: dict[str, Path], api_server: ApiServer, namespace: str) -> Iterator[Release]:
    made = Release(tools, api_server, namespace)
    yield made
    made.helm("uninstall")


def test_what_the_operator_has_written_survives_upgrades_uninstalls_and_reports_that_are_switched_off(
    release: Release,
) -> None:
    release.helm("upgrade")
    assert release.secret().get("data") is None
    release.write()
    for words in (
        ("upgrade",),
        ("upgrade", "--set=replicas=3"),
        ("upgrade", "--set=reports.enabled=false"),
        ("upgrade",),
    ):
        release.helm(*words)
        assert release.has_keys, words
    release.helm("uninstall")
    assert release.has_keys
    release.helm("upgrade")
    assert release.has_keys


def test_an_upgrade_by_force_empties_the_secret(release: Release) -> None:
    release.helm("upgrade")
    release.write()
    release.helm("upgrade", "--force-replace", "--server-side=false")  # in Helm 3: --force
    assert not release.has_keys


def test_what_the_operator_has_written_survives_each_apply_of_the_rendered_chart(
    release: Release, tools: dict[str, Path]
) -> None:
    """As Argo CD and `helm template | kubectl apply` do, also by the server and with force."""
    release.helm("upgrade", "--set=reports.enabled=false")
    (secret,) = of_kind(rendered(tools), "Secret")
    secret["metadata"] |= {"name": "kept-operator-keys", "namespace": release.namespace}
    text = yaml.safe_dump(secret)
    release.server.kubectl("apply", "-f", "-", input=text)
    release.write()
    release.server.kubectl("apply", "-f", "-", input=text)
    assert release.has_keys
    release.server.kubectl(
        "apply", "--server-side", "--force-conflicts", "--field-manager=argocd", "-f", "-", input=text
    )
    assert release.has_keys


def test_a_chart_without_reports_is_upgraded_to_one_with_an_empty_secret(release: Release) -> None:
    release.helm("upgrade", chart=PREVIOUS)
    release.helm("upgrade", "--reset-then-reuse-values")
    assert release.secret().get("data") is None
    release.helm("rollback")
    assert release.secret()["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_the_secret_of_a_chart_that_made_the_certificate_itself_stays_for_a_rollback(
    release: Release, tmp_path: Path
) -> None:
    before = tmp_path / "perdure"
    shutil.copytree(CHART, before)
    (before / "templates" / "reports.yaml").write_text(MADE_BY_HELM)
    release.helm("upgrade", chart=before)
    made = release.secret("kept-operator-reports")["data"]
    release.helm("upgrade")
    assert release.secret("kept-operator-reports")["data"] == made
    assert release.secret().get("data") is None


MADE_BY_HELM = """
apiVersion: v1
kind: Secret
metadata:
  name: {{ include "perdure.name" . }}-reports
  namespace: {{ .Release.Namespace }}
  annotations: {helm.sh/resource-policy: keep}
type: kubernetes.io/tls
data:
  {{- $ca := genCA "ca" 3650 }}
  ca.crt: {{ $ca.Cert | b64enc }}
  tls.crt: {{ $ca.Cert | b64enc }}
  tls.key: {{ $ca.Key | b64enc }}
"""
"""The part of an older chart that helm kept at upgrades."""
