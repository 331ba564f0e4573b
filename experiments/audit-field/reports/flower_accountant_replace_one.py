"""What Flower's accountant states where one client's update may be replaced by any other."""

from flwr.supercore.privacy_accounting import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, SamplingMethod
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

DELTA = 1e-5
config = PrivacyConfig(
    target_delta=DELTA,
    population_size=1000,
    neighboring_relation=NeighboringRelation.REPLACE_ONE,
    sampling_method=SamplingMethod.WITHOUT_REPLACEMENT,
)
accountant = RdpAccountant(config)
accountant.compose(GaussianPrivacyEvent(1.0, 999, 1000), 1)
print("999 of 1000 clients, noise multiplier 1, one round; epsilon that is stated:", accountant.get_epsilon(DELTA))
print("two updates C and -C of one client, noise of standard deviation C: at least 9.9957 is true")
