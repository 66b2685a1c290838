"""Environment variables that pods get from Secrets which the manifest names."""

from __future__ import annotations

from rlhf_api.spec.job import RLHFJob

HUB_TOKEN = "HF_TOKEN"
WANDB_KEY = "WANDB_API_KEY"


def secret_variables(job: RLHFJob) -> dict[str, str]:
    """Return the names of Secrets by variable; the variable is also the key in the Secret."""
    hub, wandb = job.spec.hub, job.spec.telemetry.wandb
    secrets = {
        HUB_TOKEN: None if hub is None else hub.token_secret_name,
        WANDB_KEY: None if wandb is None else wandb.secret_name,
    }
    return {variable: secret for variable, secret in secrets.items() if secret is not None}


def variables_of_all_workers(job: RLHFJob) -> set[str]:
    """Return the variables that the workers of every pool have from the manifest."""
    # Where the policy will be, and so what asks services, is known only with the plan.
    pools = [{variable.name for variable in pool.env} for pool in job.spec.resources.node_pools]
    own = {variable.name for variable in job.spec.env}
    return own.union(secret_variables(job), set.intersection(*pools) if pools else ())


def may_have_further_variables(job: RLHFJob) -> bool:
    """True if the workers of every pool get variables of objects, whose names are not known."""
    resources = job.spec.resources
    return all(resources.merged_pod(pool).env_from for pool in resources.node_pools)
