/* Plans: whether compression pays is a matter of the network, all ranks have the same plan, and what makes no
 * sense is refused. */
#include "check.h"

static brv_plan *plan_of(const brv_group *group, const brv_summand *summand)
{
    brv_plan *plan = NULL;

    CHECK(brv_plan_new(group, summand, &plan) == BRV_OK && plan != NULL);
    return plan;
}

/* Rows are in order, and each has its names. Returns how many there are of a collective. */
static size_t rows_of(const brv_plan *plan, const char *collective)
{
    brv_plan_row row = BRV_PLAN_ROW_INIT;
    size_t i, count, found = 0;
    double before = 0;

    CHECK(brv_plan_count(plan, &count) == BRV_OK && count > 0);
    for (i = 0; i < count; i++) {
        double seconds;

        CHECK(brv_plan_get_row(plan, i, &row) == BRV_OK);
        seconds = row.collective_seconds + row.own_seconds;
        CHECK(seconds >= before && row.bytes >= 0 && row.is_sum <= 1 && strlen(row.algorithm) > 0);
        before = seconds;
        found += strcmp(row.collective, collective) == 0;
        if (strcmp(row.collective, "gtop-k all-reduce") == 0)
            CHECK(strcmp(row.wire, "pairs") == 0 || strncmp(row.wire, "packed ", 7) == 0);
        if (strcmp(row.collective, "all-reduce") == 0)
            CHECK(strcmp(row.wire, "") == 0);
        CHECK(row.is_sum != (strcmp(row.collective, "sparse all-gather") == 0
                             || strcmp(row.collective, "sparse reduce-scatter") == 0
                             || strcmp(row.collective, "random-k all-reduce") == 0
                             || strcmp(row.collective, "all-reduce (unbiased-low-rank)") == 0
                             || strcmp(row.collective, "all-gather (atomo)") == 0
                             || strcmp(row.collective, "vote") == 0));
    }
    CHECK_FAILS(brv_plan_get_row(plan, count, &row), BRV_ERR_ARGUMENT, "the number of rows");
    return found;
}

static void compression_pays_on_slow_networks(void)
{
    brv_summand summand = BRV_SUMMAND_INIT;
    brv_plan *plan;

    summand.elements = 25000000;
    summand.ranks = 8;
    plan = plan_of(NULL, &summand);
    CHECK(strcmp(brv_plan_choice(plan), "dense") == 0);
    CHECK(strcmp(brv_plan_reason(plan), "nothing else was asked for") == 0);
    CHECK(rows_of(plan, "all-reduce") > 1 && rows_of(plan, "gtop-k all-reduce") == 0);
    brv_plan_free(plan);

    summand.density = 0.001;
    summand.rank = 4;
    summand.values = BRV_VALUES_EIGHT_BIT;
    summand.machine = "between:50,2,8";
    plan = plan_of(NULL, &summand);
    CHECK(strstr(brv_plan_choice(plan), "all-reduce by ") != NULL);
    CHECK(strstr(brv_plan_reason(plan), "times as fast as the all-reduce by ") != NULL);
    CHECK(rows_of(plan, "gtop-k all-reduce") == 1 && rows_of(plan, "ok-topk all-reduce") == 1);
    CHECK(rows_of(plan, "low-rank all-reduce") >= 1 && rows_of(plan, "quantised all-reduce") >= 1);
    CHECK(rows_of(plan, "sparse all-gather") >= 1 && rows_of(plan, "vote") == 1);
    CHECK(rows_of(plan, "all-gather (sign-norm)") >= 1 && rows_of(plan, "all-gather (best-low-rank)") >= 1);
    brv_plan_free(plan);

    summand.values = BRV_UNSET;
    plan = plan_of(NULL, &summand);
    CHECK(rows_of(plan, "gtop-k all-reduce") == 2);
    brv_plan_free(plan);

    summand.values = BRV_VALUES_EIGHT_BIT;
    summand.machine = "between:2,0.1,0.02;reduce:0.2";
    plan = plan_of(NULL, &summand);
    CHECK(strcmp(brv_plan_choice(plan), "dense") == 0);
    CHECK(strstr(brv_plan_reason(plan), "compression does not pay") != NULL);
    brv_plan_free(plan);
}

/* By the speeds and the hosts of the group. */
static void the_same_on_all_ranks(brv_group *group)
{
    brv_summand summand = BRV_SUMMAND_INIT;
    brv_plan_row row = BRV_PLAN_ROW_INIT;
    double seconds[2], largest[2];
    brv_plan *plan;
    size_t count;

    summand.elements = 1000000;
    summand.density = 0.01;
    plan = plan_of(group, &summand);
    CHECK(rows_of(plan, "top-k all-reduce") >= 1);
    CHECK(brv_plan_count(plan, &count) == BRV_OK);
    CHECK(brv_plan_get_row(plan, 0, &row) == BRV_OK);
    seconds[0] = row.collective_seconds + row.own_seconds;
    seconds[1] = (double)count;
    CHECK(brv_all_reduce(group, seconds, largest, 2, BRV_F64, BRV_MAX, NULL) == BRV_OK);
    CHECK(memcmp(seconds, largest, sizeof seconds) == 0);
    brv_plan_free(plan);
}

static void refusals(void)
{
    brv_summand summand = BRV_SUMMAND_INIT;
    brv_plan_row row = BRV_PLAN_ROW_INIT;
    brv_plan *plan = NULL;
    size_t count;

#define REFUSES(change, words)                                                                              \
    do {                                                                                                    \
        brv_summand before = summand;                                                                       \
        change;                                                                                             \
        CHECK_FAILS(brv_plan_new(NULL, &summand, &plan), BRV_ERR_ARGUMENT, words);                          \
        CHECK(plan == NULL);                                                                                \
        summand = before;                                                                                   \
    } while (0)
    REFUSES((void)0, "summand.ranks is 0");
    summand.ranks = 4;
    REFUSES(summand.size = 0, "summand.size is 0");
    REFUSES(summand.elements = UINT64_MAX, "summand.elements is");
    REFUSES(summand.values = 8, "summand.values is 8");
    REFUSES(summand.density = -1, "summand.density is -1");
    REFUSES(summand.density = NAN, "summand.density is NaN");
    REFUSES(summand.ranks = 1 << 21, "summand.ranks is");
    REFUSES(summand.hosts = 5, "summand.hosts is 5");
    REFUSES(summand.machine = "between", "summand.machine: ");
    REFUSES(summand.machine = "\xff", "UTF-8");
    REFUSES(summand.unused = 1, "reserved");
    REFUSES(summand.reserved[0] = 1, "reserved");
#undef REFUSES
    CHECK_FAILS(brv_plan_new(NULL, NULL, &plan), BRV_ERR_ARGUMENT, "summand is NULL");
    CHECK_FAILS(brv_plan_new(NULL, &summand, NULL), BRV_ERR_ARGUMENT, "plan is NULL");
    CHECK_FAILS(brv_plan_count(NULL, &count), BRV_ERR_ARGUMENT, "plan is NULL");
    CHECK_FAILS(brv_plan_get_row(NULL, 0, &row), BRV_ERR_ARGUMENT, "plan is NULL");
    CHECK(strcmp(brv_plan_choice(NULL), "") == 0 && strcmp(brv_plan_reason(NULL), "") == 0);
    brv_plan_free(NULL);
    plan = plan_of(NULL, &summand);
    CHECK_FAILS(brv_plan_count(plan, NULL), BRV_ERR_ARGUMENT, "count is NULL");
    CHECK_FAILS(brv_plan_get_row(plan, 0, NULL), BRV_ERR_ARGUMENT, "row is NULL");
    row.size = 8;
    CHECK_FAILS(brv_plan_get_row(plan, 0, &row), BRV_ERR_ARGUMENT, "BRV_PLAN_ROW_INIT");
    brv_plan_free(plan);
}

int main(void)
{
    brv_group *group = join();

    compression_pays_on_slow_networks();
    the_same_on_all_ranks(group);
    refusals();
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
