"""Publishes jobs to W&B, MLflow, TensorBoard and webhooks, from one place for the whole cluster."""
