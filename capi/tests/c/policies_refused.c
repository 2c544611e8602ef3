/* Policies, rules, schedules and seeds that make no sense are refused. The argument is "svd" if the library
 * has singular vectors. */
#include "check.h"

static const size_t shape[2] = {32, 32};

static void wrong_policies(brv_exchange *exchange)
{
    brv_policy policy = BRV_POLICY_OK_TOPK(0.5);

#define REFUSES(change, words)                                                                              \
    do {                                                                                                    \
        brv_policy before = policy;                                                                         \
        change;                                                                                             \
        CHECK_FAILS(brv_exchange_add(exchange, "x", shape, 2, &policy), BRV_ERR_ARGUMENT, words);           \
        policy = before;                                                                                    \
    } while (0)
    REFUSES(policy.method = (brv_method)16, "policy.method is 16, expected a brv_method (1 to 15)");
    REFUSES(policy.density = 0, "policy.density is 0");
    REFUSES(policy.selection = (brv_selection)5, "policy.selection is 5");
    REFUSES(policy.selection = BRV_SELECTION_FIXED, "policy.threshold is 0");
    REFUSES((policy.selection = BRV_SELECTION_FIXED, policy.threshold = INFINITY), "policy.threshold is inf");
    REFUSES(policy.values = 17, "policy.values is 17");
    REFUSES(policy.unused = 1, "reserved");
    REFUSES(policy.reserved[1] = 1, "reserved");
    policy.method = BRV_RANDOM_BLOCK;
    REFUSES((policy.momentum_rule = BRV_MOMENTUM_AWARE, policy.momentum = 0), "policy.momentum is 0");
    policy.method = BRV_UNBIASED_LOW_RANK;
    REFUSES((void)0, "policy.rank is 0");
    policy.rank = 2;
    REFUSES(policy.post_momentum = 1, "policy.post_momentum is 1");
    REFUSES(policy.min_compression = NAN, "policy.min_compression is NaN");
#undef REFUSES
}

static void wrong_texts(brv_exchange *exchange)
{
#define TEXT(text) brv_exchange_add_text(exchange, "x", shape, 2, text)
#define RULES(text) brv_exchange_add_by_rules(exchange, "x", shape, 2, text)
    CHECK_FAILS(TEXT(NULL), BRV_ERR_ARGUMENT, "policy is NULL");
    CHECK_FAILS(TEXT("\xff"), BRV_ERR_ARGUMENT, "UTF-8");
    CHECK_FAILS(TEXT(""), BRV_ERR_ARGUMENT, "is no policy");
    CHECK_FAILS(TEXT("topk:2"), BRV_ERR_ARGUMENT, "topk:DENSITY");
    CHECK_FAILS(TEXT("quantised:one-bit-min"), BRV_ERR_ARGUMENT, "would grow without bound");
    CHECK_FAILS(RULES(NULL), BRV_ERR_ARGUMENT, "rules is NULL");
    CHECK_FAILS(RULES("\xff"), BRV_ERR_ARGUMENT, "UTF-8");
    CHECK_FAILS(RULES("dense"), BRV_ERR_ARGUMENT, "CONDITIONS=POLICY");
    CHECK_FAILS(RULES("y*=dense;dims<2=dense"), BRV_ERR_ARGUMENT, "no rule for policies is for tensor \"x\"");
    CHECK_FAILS(brv_exchange_add_text(NULL, "x", shape, 2, "dense"), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_add_text(exchange, NULL, shape, 2, "dense"), BRV_ERR_ARGUMENT, "name is NULL");
    CHECK_FAILS(brv_exchange_add_text(exchange, "x", NULL, 2, "dense"), BRV_ERR_ARGUMENT, "shape is NULL");
    CHECK_FAILS(brv_exchange_add_by_rules(NULL, "x", shape, 2, "*=dense"), BRV_ERR_ARGUMENT,
                "exchange is NULL");
    CHECK(TEXT("dense") == BRV_OK);
    CHECK_FAILS(RULES("*=dense"), BRV_ERR_ARGUMENT, "two tensors named \"x\"");
#undef TEXT
#undef RULES
}

static void wrong_courses(brv_exchange *exchange)
{
    double density = 5, shares[2] = {0.5, 0};
    brv_schedule schedule = BRV_SCHEDULE_LINEAR(0.5, 2), listed = BRV_SCHEDULE_LISTED(shares, 2, 0.1);
    uint64_t steps;

    CHECK_FAILS(brv_schedule_density(NULL, 0, &density), BRV_ERR_ARGUMENT, "schedule is NULL");
    CHECK_FAILS(brv_schedule_density(&schedule, 0, NULL), BRV_ERR_ARGUMENT, "density is NULL");
    CHECK_FAILS(brv_schedule_density(&listed, 0, &density), BRV_ERR_ARGUMENT, "schedule.densities[1] is 0");
    listed.densities = NULL;
    CHECK_FAILS(brv_schedule_density(&listed, 0, &density), BRV_ERR_ARGUMENT, "densities is NULL");
    CHECK_FAILS(brv_exchange_set_schedule(NULL, &schedule, 1), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_set_schedule(exchange, NULL, 1), BRV_ERR_ARGUMENT, "schedule is NULL");
    schedule.warm_up = (brv_warm_up)8;
    CHECK_FAILS(brv_exchange_set_schedule(exchange, &schedule, 1), BRV_ERR_ARGUMENT, "schedule.warm_up is 8");
    schedule.warm_up = BRV_WARM_UP_LINEAR;
    schedule.target = NAN;
    CHECK_FAILS(brv_exchange_set_schedule(exchange, &schedule, 1), BRV_ERR_ARGUMENT,
                "schedule.target is NaN");
    schedule.reserved[3] = 1;
    CHECK_FAILS(brv_exchange_set_schedule(exchange, &schedule, 1), BRV_ERR_ARGUMENT, "reserved");
    schedule.size = 0;
    CHECK_FAILS(brv_exchange_set_schedule(exchange, &schedule, 1), BRV_ERR_ARGUMENT, "schedule.size is 0");
    CHECK_FAILS(brv_exchange_steps(NULL, &steps), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_steps(exchange, NULL), BRV_ERR_ARGUMENT, "steps is NULL");
    CHECK_FAILS(brv_exchange_set_steps(NULL, 1), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_set_seed(NULL, 1), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK(density == 5);
    CHECK(brv_exchange_begin(exchange) == BRV_OK);
    CHECK_FAILS(brv_exchange_set_steps(exchange, 1), BRV_ERR_ARGUMENT, "in the middle of a step");
}

int main(int count, char **arguments)
{
    int has_svd = count > 1 && strcmp(arguments[1], "svd") == 0;
    brv_policy best = BRV_POLICY_BEST_LOW_RANK(2);
    brv_group *alone = NULL;
    brv_exchange *exchange = NULL;

    CHECK(brv_group_solo(&alone) == BRV_OK);
    CHECK(brv_exchange_new(alone, &exchange) == BRV_OK);
    wrong_policies(exchange);
    wrong_texts(exchange);
    if (!has_svd) {
        CHECK_FAILS(brv_exchange_add(exchange, "y", shape, 2, &best), BRV_ERR_UNSUPPORTED, "feature svd");
        CHECK_FAILS(brv_exchange_add_text(exchange, "y", shape, 2, "atomo:2"), BRV_ERR_UNSUPPORTED, "atomo");
    }
    wrong_courses(exchange);
    brv_exchange_free(exchange);
    brv_group_free(alone);
    return 0;
}
