"""Words of other libraries' threads that pages of the site do not use; the site's search finds the pages by them."""

KEYWORDS = {
    "choose": "compression sparsification quantization gradient sparsify quantize bandwidth communication",
    "data": "user-level user level per-user dataframe pandas own custom dataset household several",
    "deploy": "hospital limit control secagg secure aggregation",
    "experiments": "hyperparameter hyperparameters tuning search grid seeds reproduce",
    "limitations": "byzantine poisoning robust histogram heavy hitters unsupported",
    "pitfalls": "weighted average fedavg num_examples batchnorm groupnorm incompatible choose delta target_delta",
    "report": "accuracy low bad nan diverges learning converge clipping max_grad_norm choose",
    "settings": "accountant rdp moments dataloader data loader sample_rate sampling enforce target_epsilon "
    "federated expected batch size compute calculate privacy",
    "statement": "gdpr dpia compliance evidence officer regulator report",
    "participation": "dataloader shuffling sampling without replacement amplification epochs",
    "python": "checkpoint restart restore save load state accountant training pytorch",
    "tutorials/audit": "membership inference attack mia canary canaries leakage",
    "tutorials/budget": "total calculate compute how many rounds stop enforce privacy federated noise_multiplier",
    "tutorials/secure-sums": "secagg secure aggregation masking dropout masks",
    "adapters": "finetuning fine-tuning fine tuning lora peft llm bert gpt transformers huggingface",
}
"""Search words by page."""
THREADS = {
    "total epsilon of a federated run": "settings",
    "compute privacy budget": "tutorials/budget",
    "enforce budget stop": "tutorials/budget",
    "shuffle epsilon": "participation",
    "sampling without replacement": "participation",
    "poisson dataloader": "settings",
    "expected batch size sample_rate": "settings",
    "microbatches epsilon": "settings",
    "percentile privacy": "settings",
    "accuracy low": "report",
    "choose clipping norm": "report",
    "lora fine-tuning": "adapters",
    "hyperparameter tuning": "experiments",
    "user-level privacy": "data",
    "gradient compression": "choose",
    "malicious clients": "limitations",
    "membership inference": "tutorials/audit",
    "gdpr evidence": "statement",
    "checkpoint accountant": "python",
    "asynchronous fedbuff": "limitations",
    "weighted average num_examples": "pitfalls",
    "node limit rounds": "deploy",
    "secure aggregation dropout": "tutorials/secure-sums",
    "batchnorm": "pitfalls",
    "choose delta": "pitfalls",
}
"""Queries in the words of the most asked threads, and the page with the answer."""
