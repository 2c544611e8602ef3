/* Every policy of an exchange, as a struct and as text: both have the same bits on all ranks, and nothing is
 * lost by those with error feedback. Rules, schedules and seeds. The argument is "svd" if the library has
 * singular vectors. */
#include "check.h"

enum { ROWS = 32, COLS = 32, N = ROWS * COLS, STEPS = 4, MOST = 32 };

static const size_t shape[2] = {ROWS, COLS};

/* A policy in both forms, and whether residuals keep what is not delivered. */
typedef struct kind {
    const char *text;
    brv_policy policy;
    int keeps;
} kind;

static kind kinds[MOST];
static size_t kind_count;

static brv_policy *add_kind(const char *text, brv_policy policy, int keeps)
{
    kind *added = &kinds[kind_count++];

    CHECK(kind_count <= MOST);
    added->text = text;
    added->policy = policy;
    added->keeps = keeps;
    return &added->policy;
}

static void sparse_kinds(void)
{
    brv_policy topk = BRV_POLICY_TOPK(0.05), gtopk = BRV_POLICY_GTOPK(0.05);
    brv_policy ok_topk = BRV_POLICY_OK_TOPK(0.05), random_k = BRV_POLICY_RANDOM_K(0.1);
    brv_policy random_block = BRV_POLICY_RANDOM_BLOCK(0.1), block = BRV_POLICY_BLOCK(0.25);
    brv_policy *policy;

    add_kind("topk:0.05,threshold=exact", topk, 1)->selection = BRV_SELECTION_EXACT;
    add_kind("gtopk:0.05,threshold=sampled", gtopk, 1)->selection = BRV_SELECTION_SAMPLED;
    add_kind("topk:0.05,threshold=adaptive", topk, 1)->selection = BRV_SELECTION_ADAPTIVE;
    policy = add_kind("gtopk:0.05,threshold=1500", gtopk, 1);
    policy->selection = BRV_SELECTION_FIXED;
    policy->threshold = 1500;
    add_kind("oktopk:0.05", ok_topk, 1);
    policy = add_kind("oktopk:0.05,values=bf16,threshold=exact", ok_topk, 1);
    policy->values = BRV_VALUES_BF16;
    policy->selection = BRV_SELECTION_EXACT;
    add_kind("oktopk:0.05,values=f32", ok_topk, 1)->values = BRV_VALUES_F32_PACKED;
    add_kind("gtopk:0.05,values=pairs", gtopk, 1)->values = BRV_VALUES_PAIRS;
    add_kind("random-k:0.1", random_k, 1);
    policy = add_kind("random-k:0.1,momentum=0.5,nesterov=yes", random_k, 0);
    policy->momentum_rule = BRV_MOMENTUM_NESTEROV;
    policy->momentum = 0.5;
    add_kind("random-block:0.1", random_block, 1);
    policy = add_kind("random-block:0.1,samomentum=0.5", random_block, 0);
    policy->momentum_rule = BRV_MOMENTUM_AWARE;
    policy->momentum = 0.5;
    add_kind("block:0.25", block, 1);
    add_kind("block:0.25,momentum=0,clip=100", block, 0)->clip = 100;
}

static void other_kinds(int has_svd)
{
    brv_policy low_rank = BRV_POLICY_LOW_RANK(2), unbiased = BRV_POLICY_UNBIASED_LOW_RANK(2);
    brv_policy best = BRV_POLICY_BEST_LOW_RANK(2), atomo = BRV_POLICY_ATOMO(2);
    brv_policy dense = BRV_POLICY_DENSE, sign_norm = BRV_POLICY_SIGN_NORM;
    brv_policy quantised = BRV_POLICY_QUANTISED(BRV_VALUES_TWO_BIT_MEAN), signum = BRV_POLICY_SIGNUM(0.5);
    brv_policy qsgd = BRV_POLICY_QUANTISED(BRV_VALUES_QSGD(5));

    add_kind("dense", dense, 1);
    add_kind("low-rank:2", low_rank, 1);
    add_kind("low-rank:2,post-momentum=0.5", low_rank, 0)->post_momentum = 0.5;
    add_kind("unbiased-low-rank:2", unbiased, 0);
    add_kind("unbiased-low-rank:2,min=1.5", unbiased, 0)->min_compression = 1.5;
    add_kind("quantised:two-bit-mean", quantised, 1);
    add_kind("quantised:qsgd-5", qsgd, 1);
    add_kind("quantised:one-bit-columns-9", quantised, 1)->values = BRV_VALUES_COLUMNS(9);
    add_kind("quantised:ternary", quantised, 1)->values = BRV_VALUES_TERNARY;
    add_kind("signum:0.5", signum, 0);
    add_kind("sign-norm", sign_norm, 1);
    if (has_svd) {
        add_kind("best-low-rank:2", best, 1);
        add_kind("atomo:2", atomo, 0);
    }
}

static brv_exchange *new_exchange(brv_group *group)
{
    brv_exchange *exchange = NULL;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    return exchange;
}

static brv_exchange *exchange_of(brv_group *group, const brv_policy *policy)
{
    brv_exchange *exchange = new_exchange(group);

    CHECK(brv_exchange_add(exchange, "tensor", shape, 2, policy) == BRV_OK);
    return exchange;
}

static brv_status average(brv_exchange *exchange, float *gradient)
{
    return brv_exchange_average(exchange, &gradient, 1, NULL);
}

/* Whole numbers, so that sums are exact. */
static void fill(float *values, uint32_t step, int32_t rank)
{
    size_t i;

    for (i = 0; i < N; i++)
        values[i] = (float)number(step, rank, i, 1000);
}

static void same_on_all_ranks(brv_group *group, const float *values)
{
    static float first[N];

    memcpy(first, values, sizeof first);
    CHECK(brv_broadcast(group, first, N, BRV_F32, 0, NULL) == BRV_OK);
    CHECK(memcmp(first, values, sizeof first) == 0);
}

static void both_forms_agree(brv_group *group, const kind *of)
{
    static float ours[N], theirs[N], residual[N], other[N];
    static double balance[N];
    brv_exchange *exchange = exchange_of(group, &of->policy), *by_text = new_exchange(group);
    int32_t rank, size = brv_group_size(group);
    uint32_t step;
    size_t i, delivered = 0;

    CHECK(brv_exchange_add_text(by_text, "tensor", shape, 2, of->text) == BRV_OK);
    memset(balance, 0, sizeof balance);
    for (step = 0; step < STEPS; step++) {
        fill(ours, step, brv_group_rank(group));
        memcpy(theirs, ours, sizeof ours);
        CHECK(average(exchange, ours) == BRV_OK && average(by_text, theirs) == BRV_OK);
        CHECK(memcmp(ours, theirs, sizeof ours) == 0);
        same_on_all_ranks(group, ours);
        for (i = 0; i < N; i++) {
            for (rank = 0; rank < size; rank++)
                balance[i] += number(step, rank, i, 1000);
            balance[i] -= (double)ours[i] * size;
            delivered += ours[i] != 0;
        }
    }
    CHECK(delivered > 0);
    CHECK(brv_exchange_residual(exchange, "tensor", residual, N) == BRV_OK);
    CHECK(brv_exchange_residual(by_text, "tensor", other, N) == BRV_OK);
    CHECK(memcmp(residual, other, sizeof residual) == 0);
    CHECK(brv_all_reduce(group, residual, residual, N, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    for (i = 0; i < N && of->keeps; i++)
        CHECK(fabs(balance[i] - residual[i]) < 0.1);
    brv_exchange_free(exchange);
    brv_exchange_free(by_text);
}

/* All ranks learn of a value that is not finite, and the step does not count. */
static void a_bad_value_is_named(brv_group *group, const kind *of)
{
    static float values[N];
    brv_exchange *exchange = exchange_of(group, &of->policy);
    uint64_t steps = 9;

    fill(values, 0, brv_group_rank(group));
    if (brv_group_rank(group) == 0)
        values[77] = NAN;
    CHECK_FAILS(average(exchange, values), BRV_ERR_NON_FINITE, "tensor");
    CHECK(brv_last_error_rank() == 0);
    CHECK(brv_exchange_steps(exchange, &steps) == BRV_OK && steps == 0);
    brv_exchange_free(exchange);
}

/* m = 0.5 m + a, and the result is a + m, with the averages a of the same policy without momentum. */
static void momentum_comes_after_aggregation(brv_group *group)
{
    static float plain[N], moved[N], momentum[N];
    brv_policy policy = BRV_POLICY_LOW_RANK(2);
    brv_exchange *without = exchange_of(group, &policy), *with;
    uint32_t step;
    size_t i;

    policy.post_momentum = 0.5;
    with = exchange_of(group, &policy);
    memset(momentum, 0, sizeof momentum);
    for (step = 0; step < STEPS; step++) {
        fill(plain, step, brv_group_rank(group));
        memcpy(moved, plain, sizeof plain);
        CHECK(average(without, plain) == BRV_OK && average(with, moved) == BRV_OK);
        for (i = 0; i < N; i++) {
            momentum[i] = 0.5f * momentum[i] + plain[i];
            CHECK(fabs(moved[i] - (plain[i] + momentum[i])) < 0.01);
        }
    }
    brv_exchange_free(without);
    brv_exchange_free(with);
}

/* Each rank keeps its own gradient, whatever its values. */
static void excluded_tensors_stay(brv_group *group)
{
    static float values[N], given[N];
    brv_policy policy = BRV_POLICY_EXCLUDED;
    brv_exchange *exchange = exchange_of(group, &policy);
    float *place = values;

    fill(values, 0, brv_group_rank(group));
    values[77] = NAN;
    memcpy(given, values, sizeof values);
    CHECK(average(exchange, values) == BRV_OK && memcmp(given, values, sizeof values) == 0);
    CHECK(brv_exchange_residual(exchange, "tensor", given, N) == BRV_OK && given[0] == 0 && given[77] == 0);
    brv_exchange_free(exchange);
    exchange = new_exchange(group);
    CHECK(brv_exchange_add_text(exchange, "tensor", shape, 2, "excluded") == BRV_OK);
    memcpy(given, values, sizeof values);
    CHECK(average(exchange, values) == BRV_OK && memcmp(given, values, sizeof values) == 0);
    CHECK(brv_exchange_step_empty(exchange, &place, 1, NULL) == BRV_OK);
    CHECK(memcmp(given, values, sizeof values) == 0);
    brv_exchange_free(exchange);
}

/* The first rule that fits decides. */
static void rules(brv_group *group)
{
    static const char text[] = "dims<2=dense; *.weight&size>1000=oktopk:0.05; ?.gate=sign-norm; *=topk:0.2";
    static const char *names[4] = {"a.bias", "a.weight", "a.gate", "a.other"};
    static const char *policies[4] = {"dense", "oktopk:0.05", "sign-norm", "topk:0.2"};
    static float ours[4][N], theirs[4][N];
    brv_exchange *by_rules = new_exchange(group), *by_text = new_exchange(group);
    float *our_pointers[4], *their_pointers[4];
    size_t tensor, n = N;

    for (tensor = 0; tensor < 4; tensor++) {
        const size_t *dimensions = tensor == 0 ? &n : shape;
        size_t count = tensor == 0 ? 1 : 2;

        CHECK(brv_exchange_add_by_rules(by_rules, names[tensor], dimensions, count, text) == BRV_OK);
        CHECK(brv_exchange_add_text(by_text, names[tensor], dimensions, count, policies[tensor]) == BRV_OK);
        fill(ours[tensor], (uint32_t)tensor, brv_group_rank(group));
        our_pointers[tensor] = ours[tensor];
        their_pointers[tensor] = theirs[tensor];
    }
    memcpy(theirs, ours, sizeof ours);
    CHECK(brv_exchange_average(by_rules, our_pointers, 4, NULL) == BRV_OK);
    CHECK(brv_exchange_average(by_text, their_pointers, 4, NULL) == BRV_OK);
    CHECK(memcmp(ours, theirs, sizeof ours) == 0);
    brv_exchange_free(by_rules);
    brv_exchange_free(by_text);
}

static size_t entries_of_step(brv_exchange *exchange)
{
    static float values[N];
    size_t i, count = 0;

    for (i = 0; i < N; i++)
        values[i] = 1;
    CHECK(average(exchange, values) == BRV_OK);
    for (i = 0; i < N; i++)
        count += values[i] != 0;
    return count;
}

/* The density falls, is where it was after a load, and is where the program sets it. */
static void densities_follow_a_schedule(brv_group *group)
{
    static const size_t expected[] = {256, 256, 64, 64, 16, 16, 4, 4, 1, 1};
    brv_schedule schedule = BRV_SCHEDULE_EXPONENTIAL(1.0 / 1024, 4);
    brv_policy policy = BRV_POLICY_GTOPK(1.0 / 1024);
    brv_exchange *exchange = exchange_of(group, &policy), *restarted = exchange_of(group, &policy);
    unsigned char *saved;
    uint64_t steps;
    size_t step, bytes;

    CHECK(brv_exchange_set_schedule(exchange, &schedule, 2) == BRV_OK);
    CHECK(brv_exchange_set_schedule(restarted, &schedule, 2) == BRV_OK);
    for (step = 0; step < 3; step++)
        CHECK(entries_of_step(exchange) == expected[step]);
    CHECK(brv_exchange_saved_size(exchange, &bytes) == BRV_OK);
    saved = malloc(bytes);
    CHECK(saved != NULL && brv_exchange_save(exchange, saved, bytes) == BRV_OK);
    CHECK(brv_exchange_load(restarted, saved, bytes) == BRV_OK);
    free(saved);
    CHECK(brv_exchange_steps(restarted, &steps) == BRV_OK && steps == 3);
    for (step = 3; step < 10; step++)
        CHECK(entries_of_step(restarted) == expected[step]);
    CHECK(brv_exchange_set_steps(restarted, 4) == BRV_OK);
    CHECK(entries_of_step(restarted) == 16);
    CHECK(brv_exchange_steps(restarted, &steps) == BRV_OK && steps == 5);
    CHECK_FAILS(brv_exchange_set_schedule(restarted, &schedule, 2), BRV_ERR_ARGUMENT,
                "before the first call");
    brv_exchange_free(exchange);
    brv_exchange_free(restarted);
}

static void first_steps_may_be_dense(brv_group *group)
{
    static const double all[2] = {1, 1};
    brv_schedule schedule = BRV_SCHEDULE_LISTED(all, 2, 0.25);
    brv_policy policy = BRV_POLICY_TOPK(0.125);
    brv_exchange *exchange = exchange_of(group, &policy);

    CHECK(brv_exchange_set_schedule(exchange, &schedule, 0) == BRV_OK);
    CHECK(entries_of_step(exchange) == N && entries_of_step(exchange) == N);
    CHECK(entries_of_step(exchange) == N / 4);
    brv_exchange_free(exchange);
}

static void schedule_is(brv_schedule schedule, const double *expected, size_t count)
{
    double density;
    size_t period;

    for (period = 0; period < count; period++) {
        CHECK(brv_schedule_density(&schedule, period, &density) == BRV_OK);
        CHECK(fabs(density - expected[period]) < 1e-12);
    }
    CHECK(brv_schedule_density(&schedule, UINT64_MAX, &density) == BRV_OK);
    CHECK(density == expected[count - 1]);
}

static void schedules(void)
{
    static const double exponential[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625, 0.0009765625};
    static const double linear[] = {0.8, 0.6, 0.4, 0.2}, constant[] = {0.3, 0.3}, listed[] = {0.5, 0.7, 0.1};
    static const double dgc[] = {0.25, 0.0625, 0.015625, 0.004, 0.001};
    static const double gtopk[] = {0.25, 0.0725, 0.015, 0.004, 0.001};
    static const double recurrent[] = {0.25, 0.0725, 0.015, 0.004, 0.005};
    brv_schedule schedule[7] = {
        BRV_SCHEDULE_CONSTANT(0.3), BRV_SCHEDULE_EXPONENTIAL(1.0 / 1024, 4), BRV_SCHEDULE_LINEAR(0.2, 3),
        BRV_SCHEDULE_LISTED(listed, 2, 0.1), BRV_SCHEDULE_DGC, BRV_SCHEDULE_GTOPK,
        BRV_SCHEDULE_GTOPK_RECURRENT,
    };

    schedule_is(schedule[0], constant, 2);
    schedule_is(schedule[1], exponential, 6);
    schedule_is(schedule[2], linear, 4);
    schedule_is(schedule[3], listed, 3);
    schedule_is(schedule[4], dgc, 5);
    schedule_is(schedule[5], gtopk, 5);
    schedule_is(schedule[6], recurrent, 5);
}

/* Places that are drawn depend on the seed. */
static void seeds(brv_group *group)
{
    static float values[3][N];
    static const uint64_t seed[3] = {5, 5, 6};
    brv_policy policy = BRV_POLICY_RANDOM_K(0.1);
    size_t i;

    for (i = 0; i < 3; i++) {
        brv_exchange *exchange = exchange_of(group, &policy);

        CHECK(brv_exchange_set_seed(exchange, seed[i]) == BRV_OK);
        fill(values[i], 0, brv_group_rank(group));
        CHECK(average(exchange, values[i]) == BRV_OK);
        CHECK_FAILS(brv_exchange_set_seed(exchange, 1), BRV_ERR_ARGUMENT, "before the first call");
        brv_exchange_free(exchange);
    }
    CHECK(memcmp(values[0], values[1], sizeof values[0]) == 0);
    CHECK(memcmp(values[0], values[2], sizeof values[0]) != 0);
}

int main(int count, char **arguments)
{
    int has_svd = count > 1 && strcmp(arguments[1], "svd") == 0;
    brv_group *group = join();
    size_t i;

    sparse_kinds();
    other_kinds(has_svd);
    for (i = 0; i < kind_count; i++) {
        both_forms_agree(group, &kinds[i]);
        a_bad_value_is_named(group, &kinds[i]);
    }
    momentum_comes_after_aggregation(group);
    excluded_tensors_stay(group);
    rules(group);
    densities_follow_a_schedule(group);
    first_steps_may_be_dense(group);
    schedules();
    seeds(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
