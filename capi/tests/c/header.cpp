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
                             BRV_POLICY_SIGNUM(0.9), BRV_POLICY_OK_TOPK(0.5), BRV_POLICY_RANDOM_K(0.5),
                             BRV_POLICY_RANDOM_BLOCK(0.5), BRV_POLICY_BLOCK(0.5),
                             BRV_POLICY_UNBIASED_LOW_RANK(2), BRV_POLICY_BEST_LOW_RANK(2),
                             BRV_POLICY_ATOMO(2), BRV_POLICY_SIGN_NORM, BRV_POLICY_EXCLUDED,
                             BRV_POLICY_QUANTISED(BRV_VALUES_QSGD(7)),
                             BRV_POLICY_QUANTISED(BRV_VALUES_COLUMNS(9))};
    brv_schedule schedules[] = {BRV_SCHEDULE_CONSTANT(0.5), BRV_SCHEDULE_LINEAR(0.5, 2), BRV_SCHEDULE_DGC};
    brv_quantiser_config configs[] = {BRV_QUANTISER_INIT(BRV_FORMAT_SIGN), BRV_QUANTISER_TERNARY(7),
                                      BRV_QUANTISER_QSGD(7, 7)};
    brv_summand summand = BRV_SUMMAND_INIT;
    brv_plan_row row = BRV_PLAN_ROW_INIT;
    config.rank = 0;
    config.world_size = 1;
    if (brv_group_join(&config, &group) != BRV_OK || policies[1].size != sizeof(brv_policy))
        return 1;
    if (schedules[2].size != sizeof(brv_schedule) || configs[2].size != sizeof(brv_quantiser_config))
        return 1;
    if (summand.size != sizeof(brv_summand) || row.size != sizeof(brv_plan_row))
        return 1;
    brv_status status = brv_all_reduce(group, values.data(), values.data(), values.size(), BRV_F32,
                                       BRV_AVERAGE, &options);
    brv_group_free(group);
    return status == BRV_OK && values[7] == 1.0f ? 0 : 1;
}
