// The header is C++ as well: one translation unit that uses it.
#include <brevity.h>
#include <brevity.h>
#include <vector>

int main()
{
    brv_group *group = nullptr;
    std::vector<float> values(8, 1.0f);
    brv_config config = BRV_CONFIG_INIT;
    brv_options options = BRV_OPTIONS_INIT;
    brv_policy policies[] = {BRV_POLICY_DENSE, BRV_POLICY_TOPK(0.5), BRV_POLICY_GTOPK(0.5),
                             BRV_POLICY_LOW_RANK(2), BRV_POLICY_QUANTISED(BRV_VALUES_BF16),
                             BRV_POLICY_SIGNUM(0.9)};
    config.rank = 0;
    config.world_size = 1;
    if (brv_group_join(&config, &group) != BRV_OK || policies[1].size != sizeof(brv_policy))
        return 1;
    brv_status status = brv_all_reduce(group, values.data(), values.data(), values.size(), BRV_F32,
                                       BRV_AVERAGE, &options);
    brv_group_free(group);
    return status == BRV_OK && values[7] == 1.0f ? 0 : 1;
}
