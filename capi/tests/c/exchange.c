/* Exchanges: every tensor of a list gets the result of its own call, residuals are saved and loaded, and an
 * invalid list is refused. */
#include "check.h"

enum { ROWS = 40, COLS = 30, MATRIX = ROWS * COLS, SPARSE = 500, BIAS = 7, TENSORS = 8, STEPS = 3 };

/* The gradients of all tensors: a matrix, one by gTop-k, one by top k, a bias, one by top k and one by gTop-k
 * in 16 bits, one of which all elements are rounded, and one whose signs are voted on. */
struct gradients {
    float matrix[MATRIX], sparse[SPARSE], all[SPARSE], bias[BIAS], rounded[SPARSE], largest[SPARSE];
    float quantised[SPARSE], signs[SPARSE];
};

static brv_exchange *exchange_of(brv_group *group)
{
    brv_exchange *exchange = NULL;
    brv_policy rounded = BRV_POLICY_TOPK(0.5), largest = BRV_POLICY_GTOPK(0.2);
    brv_policy quantised = BRV_POLICY_QUANTISED(BRV_VALUES_EIGHT_BIT), signs = BRV_POLICY_SIGNUM(0.5);
    size_t n = SPARSE;

    rounded.values = BRV_VALUES_BF16;
    largest.values = BRV_VALUES_F16;
    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_low_rank(exchange, "matrix", ROWS, COLS, 2) == BRV_OK);
    CHECK(add_gtopk(exchange, "sparse", SPARSE, 0.05) == BRV_OK);
    CHECK(add_topk(exchange, "all", SPARSE, 1) == BRV_OK);
    CHECK(add_dense(exchange, "bias", BIAS) == BRV_OK);
    CHECK(brv_exchange_add(exchange, "rounded", &n, 1, &rounded) == BRV_OK);
    CHECK(brv_exchange_add(exchange, "largest", &n, 1, &largest) == BRV_OK);
    CHECK(brv_exchange_add(exchange, "quantised", &n, 1, &quantised) == BRV_OK);
    CHECK(brv_exchange_add(exchange, "signs", &n, 1, &signs) == BRV_OK);
    return exchange;
}

/* Whole numbers, so that sums are exact. */
static void fill(float *values, size_t n, uint32_t seed, int32_t rank)
{
    size_t i;

    for (i = 0; i < n; i++)
        values[i] = (float)number(seed, rank, i, 1000);
}

static void fill_all(struct gradients *gradients, uint32_t step, int32_t rank)
{
    fill(gradients->matrix, MATRIX, 4 * step, rank);
    fill(gradients->sparse, SPARSE, 4 * step + 1, rank);
    fill(gradients->all, SPARSE, 4 * step + 2, rank);
    fill(gradients->bias, BIAS, 4 * step + 3, rank);
    fill(gradients->rounded, SPARSE, 4 * step + 1, rank);
    fill(gradients->largest, SPARSE, 4 * step + 1, rank);
    fill(gradients->quantised, SPARSE, 4 * step + 1, rank);
    fill(gradients->signs, SPARSE, 4 * step + 1, rank);
}

static brv_status average(brv_exchange *exchange, struct gradients *gradients)
{
    float *pointers[TENSORS];

    pointers[0] = gradients->matrix;
    pointers[1] = gradients->sparse;
    pointers[2] = gradients->all;
    pointers[3] = gradients->bias;
    pointers[4] = gradients->rounded;
    pointers[5] = gradients->largest;
    pointers[6] = gradients->quantised;
    pointers[7] = gradients->signs;
    return brv_exchange_average(exchange, pointers, TENSORS, NULL);
}

/* Whether these are the mean of all ranks' values. */
static int is_mean(brv_group *group, const float *values, size_t n, uint32_t seed)
{
    int32_t rank, size = brv_group_size(group);
    size_t i;

    for (i = 0; i < n; i++) {
        double sum = 0;
        for (rank = 0; rank < size; rank++)
            sum += number(seed, rank, i, 1000);
        if (fabs(values[i] - sum / size) > 1e-4)
            return 0;
    }
    return 1;
}

/* The same bits as the calls for single tensors, and the mean if nothing is left out. */
static void each_as_its_own_call(brv_group *group)
{
    static struct gradients ours, theirs;
    static float residual[MATRIX], expected[MATRIX];
    brv_exchange *exchange = exchange_of(group);
    brv_feedback *matrix = NULL, *sparse = NULL;
    uint32_t step;

    CHECK(brv_feedback_new(&matrix) == BRV_OK && brv_feedback_new(&sparse) == BRV_OK);
    for (step = 0; step < STEPS; step++) {
        double density = step % 2 ? 0.05 : 0.1;

        fill_all(&ours, step, brv_group_rank(group));
        fill_all(&theirs, step, brv_group_rank(group));
        CHECK(brv_exchange_set_density(exchange, "sparse", density) == BRV_OK);
        CHECK(average(exchange, &ours) == BRV_OK);
        CHECK(brv_low_rank_average(group, matrix, theirs.matrix, ROWS, COLS, 2, NULL) == BRV_OK);
        CHECK(brv_gtopk_average(group, sparse, theirs.sparse, SPARSE, density, NULL) == BRV_OK);
        CHECK(memcmp(ours.matrix, theirs.matrix, sizeof ours.matrix) == 0);
        CHECK(memcmp(ours.sparse, theirs.sparse, sizeof ours.sparse) == 0);
        CHECK(is_mean(group, ours.all, SPARSE, 4 * step + 2));
        CHECK(is_mean(group, ours.bias, BIAS, 4 * step + 3));
    }
    CHECK(brv_exchange_residual(exchange, "sparse", residual, SPARSE) == BRV_OK);
    CHECK(brv_feedback_residual(sparse, expected, SPARSE) == BRV_OK);
    CHECK(memcmp(residual, expected, SPARSE * sizeof *residual) == 0);
    CHECK(brv_exchange_residual(exchange, "matrix", residual, MATRIX) == BRV_OK);
    CHECK(brv_feedback_residual(matrix, expected, MATRIX) == BRV_OK);
    CHECK(memcmp(residual, expected, sizeof residual) == 0);
    brv_feedback_free(matrix);
    brv_feedback_free(sparse);
    brv_exchange_free(exchange);
}

/* What all ranks have handed in was delivered or is in residuals. */
static void is_balanced(brv_group *group, brv_exchange *exchange, const char *tensor, const double *balance)
{
    static float residual[SPARSE];
    size_t i;

    CHECK(brv_exchange_residual(exchange, tensor, residual, SPARSE) == BRV_OK);
    CHECK(brv_all_reduce(group, residual, residual, SPARSE, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    for (i = 0; i < SPARSE; i++)
        CHECK(fabs(balance[i] - residual[i]) < 1e-2);
}

static void rounded_values_lose_nothing(brv_group *group)
{
    static struct gradients gradients;
    static double rounded[SPARSE], largest[SPARSE], quantised[SPARSE];
    brv_exchange *exchange = exchange_of(group);
    int32_t rank, size = brv_group_size(group);
    uint32_t step;
    size_t i;

    memset(rounded, 0, sizeof rounded);
    memset(largest, 0, sizeof largest);
    memset(quantised, 0, sizeof quantised);
    for (step = 0; step < STEPS; step++) {
        fill_all(&gradients, step, brv_group_rank(group));
        CHECK(average(exchange, &gradients) == BRV_OK);
        for (i = 0; i < SPARSE; i++) {
            double given = 0;

            for (rank = 0; rank < size; rank++)
                given += number(4 * step + 1, rank, i, 1000);
            rounded[i] += given - (double)gradients.rounded[i] * size;
            largest[i] += given - (double)gradients.largest[i] * size;
            quantised[i] += given - (double)gradients.quantised[i] * size;
        }
    }
    is_balanced(group, exchange, "rounded", rounded);
    is_balanced(group, exchange, "largest", largest);
    is_balanced(group, exchange, "quantised", quantised);
    brv_exchange_free(exchange);
}

/* The momentum of a rank is what it has of all steps, the last one twice the one before. */
static void signs_are_voted_on(brv_group *group)
{
    static struct gradients gradients;
    static float momenta[64][SPARSE], residual[SPARSE];
    brv_exchange *exchange = exchange_of(group);
    int32_t rank, size = brv_group_size(group);
    uint32_t step;
    size_t i;

    CHECK(size <= 64);
    memset(momenta, 0, sizeof momenta);
    for (step = 0; step < STEPS; step++) {
        fill_all(&gradients, step, brv_group_rank(group));
        CHECK(average(exchange, &gradients) == BRV_OK);
        for (i = 0; i < SPARSE; i++) {
            int votes = 0;

            for (rank = 0; rank < size; rank++) {
                float *m = &momenta[rank][i];

                *m = 0.5f * *m + 0.5f * (float)number(4 * step + 1, rank, i, 1000);
                votes += (*m > 0) - (*m < 0);
            }
            CHECK(gradients.signs[i] == (float)((votes > 0) - (votes < 0)));
        }
    }
    CHECK(brv_exchange_residual(exchange, "signs", residual, SPARSE) == BRV_OK);
    for (i = 0; i < SPARSE; i++)
        CHECK(residual[i] == 0);
    brv_exchange_free(exchange);
}

static unsigned char *save(brv_exchange *exchange, size_t *bytes)
{
    unsigned char *saved;

    CHECK(brv_exchange_saved_size(exchange, bytes) == BRV_OK);
    saved = malloc(*bytes);
    CHECK(saved != NULL && brv_exchange_save(exchange, saved, *bytes) == BRV_OK);
    return saved;
}

static void goes_on(brv_group *group)
{
    static struct gradients ours, theirs;
    brv_exchange *exchange = exchange_of(group), *restarted = exchange_of(group);
    unsigned char *saved, *again;
    size_t bytes, i;
    uint32_t step;

    for (step = 0; step < STEPS; step++) {
        fill_all(&ours, step, brv_group_rank(group));
        CHECK(average(exchange, &ours) == BRV_OK);
    }
    saved = save(exchange, &bytes);
    /* A refused call changes nothing, whatever the exchange contains. */
    for (i = 0; i < 8 * bytes; i += i < 8 * 200 ? 7 : 997) {
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_exchange_load(exchange, saved, bytes), BRV_ERR_ARGUMENT, "saved state");
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_exchange_load(exchange, saved, i / 8), BRV_ERR_ARGUMENT, "saved state ends");
    }
    CHECK_FAILS(brv_exchange_save(exchange, saved, bytes - 1), BRV_ERR_ARGUMENT, "brv_exchange_saved_size");
    again = save(exchange, &i);
    CHECK(i == bytes && memcmp(saved, again, bytes) == 0);
    again = realloc(again, bytes + 1);
    CHECK(again != NULL);
    again[bytes] = 0;
    CHECK_FAILS(brv_exchange_load(exchange, again, bytes + 1), BRV_ERR_ARGUMENT, "1 bytes follow");
    free(again);

    CHECK(brv_exchange_load(restarted, saved, bytes) == BRV_OK);
    for (step = STEPS; step < 2 * STEPS; step++) {
        fill_all(&ours, step, brv_group_rank(group));
        theirs = ours;
        CHECK(average(exchange, &ours) == BRV_OK && average(restarted, &theirs) == BRV_OK);
        CHECK(memcmp(&ours, &theirs, sizeof ours) == 0);
    }
    brv_exchange_free(restarted);
    restarted = NULL;
    CHECK(brv_exchange_new(group, &restarted) == BRV_OK);
    CHECK(add_dense(restarted, "bias", BIAS) == BRV_OK);
    CHECK_FAILS(brv_exchange_load(restarted, saved, bytes), BRV_ERR_ARGUMENT, "another model");
    free(saved);
    brv_exchange_free(restarted);
    brv_exchange_free(exchange);
}

/* A density outlives loading: after the step everything has been sent. */
static void loading_keeps_densities(brv_group *group)
{
    static struct gradients ours;
    static float residual[SPARSE];
    brv_exchange *exchange = exchange_of(group);
    unsigned char *saved;
    size_t bytes, i;

    CHECK(brv_exchange_set_density(exchange, "sparse", 1) == BRV_OK);
    saved = save(exchange, &bytes);
    CHECK(brv_exchange_load(exchange, saved, bytes) == BRV_OK);
    fill_all(&ours, 9, brv_group_rank(group));
    CHECK(average(exchange, &ours) == BRV_OK);
    CHECK(brv_exchange_residual(exchange, "sparse", residual, SPARSE) == BRV_OK);
    for (i = 0; i < SPARSE; i++)
        CHECK(residual[i] == 0);
    free(saved);
    brv_exchange_free(exchange);
}

/* A rank may ask for the size of one exchange before the others use it. */
static void asking_takes_no_turn(brv_group *group)
{
    static struct gradients ours;
    brv_exchange *first = exchange_of(group), *second = exchange_of(group);
    size_t bytes;

    if (brv_group_rank(group) == 0)
        CHECK(brv_exchange_saved_size(second, &bytes) == BRV_OK);
    fill_all(&ours, 3, brv_group_rank(group));
    CHECK(average(first, &ours) == BRV_OK && average(second, &ours) == BRV_OK);
    brv_exchange_free(first);
    brv_exchange_free(second);
}

/* Of a tensor with three dimensions. Nothing is added. */
static void wrong_policies(brv_exchange *exchange)
{
    size_t shape[3] = {9, 3, 5};
    brv_policy policy = BRV_POLICY_LOW_RANK(1);

#define REFUSES(change, words)                                                                              \
    do {                                                                                                    \
        brv_policy before = policy;                                                                         \
        change;                                                                                             \
        CHECK_FAILS(brv_exchange_add(exchange, "x", shape, 3, &policy), BRV_ERR_ARGUMENT, words);           \
        policy = before;                                                                                    \
    } while (0)
    REFUSES(policy.size = 88, "policy.size is 88, expected 96");
    REFUSES(policy.method = (brv_method)0, "policy.method is 0");
    REFUSES(policy.method = (brv_method)16, "policy.method is 16");
    REFUSES(policy.min_compression = -1, "policy.min_compression is -1");
    REFUSES(policy.reserved[0] = 1, "reserved");
    policy.method = BRV_TOPK;
    policy.density = 0.5;
    REFUSES(policy.momentum_rule = (brv_momentum)4, "policy.momentum_rule is 4");
    REFUSES((policy.momentum_rule = BRV_MOMENTUM_CORRECTED, policy.momentum = 1), "policy.momentum is 1");
    REFUSES(policy.clip = -1, "policy.clip is -1");
    REFUSES(policy.values = 13, "policy.values is 13");
    policy.method = BRV_GTOPK;
    REFUSES(policy.density = 0, "policy.density is 0");
    policy.density = 0.5;
    REFUSES(policy.put_back = (brv_put_back)3, "policy.put_back is 3");
    policy.method = BRV_QUANTISED;
    REFUSES(policy.values = 8, "policy.values is 8");
    REFUSES(policy.values = BRV_VALUES_ONE_BIT_MIN, "would grow without bound");
    policy.method = BRV_SIGNUM;
    REFUSES(policy.momentum = 1, "policy.momentum is 1");
    REFUSES(policy.momentum = NAN, "policy.momentum is NaN");
    CHECK_FAILS(brv_exchange_add(exchange, "x", NULL, 3, &policy), BRV_ERR_ARGUMENT, "shape is NULL");
#undef REFUSES
}


static void arguments(brv_group *group)
{
    float bias[BIAS] = {1, 2, 3, 4, 5, 6, 7}, *pointers[2], out[BIAS];
    brv_exchange *exchange = NULL;
    size_t bytes;

    CHECK_FAILS(brv_exchange_new(NULL, &exchange), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(exchange == NULL);
    CHECK_FAILS(brv_exchange_new(group, NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_average(NULL, pointers, 0, NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_saved_size(NULL, &bytes), BRV_ERR_ARGUMENT, "exchange is NULL");
    brv_exchange_free(NULL);
    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_dense(exchange, "bias", BIAS) == BRV_OK);
    CHECK_FAILS(add_dense(exchange, NULL, 1), BRV_ERR_ARGUMENT, "name is NULL");
    CHECK_FAILS(add_dense(exchange, "\xff", 1), BRV_ERR_ARGUMENT, "UTF-8");
    CHECK_FAILS(add_dense(exchange, "bias", 1), BRV_ERR_ARGUMENT, "two tensors named \"bias\"");
    CHECK_FAILS(add_topk(exchange, "x", 9, NAN), BRV_ERR_ARGUMENT, "density");
    CHECK_FAILS(add_gtopk(exchange, "x", 9, 1.5), BRV_ERR_ARGUMENT, "density");
    CHECK_FAILS(add_low_rank(exchange, "x", 9, 9, 0), BRV_ERR_ARGUMENT, "policy.rank is 0");
    CHECK_FAILS(add_low_rank(exchange, "x", SIZE_MAX, 2, 1), BRV_ERR_ARGUMENT, "memory");
    CHECK_FAILS(add_dense(exchange, "x", SIZE_MAX / 4), BRV_ERR_ARGUMENT, "memory");
    CHECK_FAILS(add_topk(exchange, "x", ((size_t)1 << 32) + 1, 0.1), BRV_ERR_ARGUMENT, "2^32");
    wrong_policies(exchange);
    CHECK(add_gtopk(exchange, "more", BIAS, 0.5) == BRV_OK);

    pointers[0] = pointers[1] = bias;
    CHECK_FAILS(brv_exchange_average(exchange, pointers, 1, NULL), BRV_ERR_ARGUMENT,
                "tensors is 1, expected 2");
    CHECK_FAILS(brv_exchange_average(exchange, NULL, 2, NULL), BRV_ERR_ARGUMENT, "gradients is NULL");
    CHECK_FAILS(brv_exchange_average(exchange, pointers, 2, NULL), BRV_ERR_ARGUMENT, "overlap");
    pointers[1] = NULL;
    CHECK_FAILS(brv_exchange_average(exchange, pointers, 2, NULL), BRV_ERR_ARGUMENT,
                "the gradient of \"more\" is NULL");
    CHECK(bias[0] == 1 && bias[6] == 7);
    pointers[1] = out;
    memcpy(out, bias, sizeof out);
    CHECK(brv_exchange_average(exchange, pointers, 2, NULL) == BRV_OK);
    CHECK(bias[0] == 1 && out[0] == 0 && out[6] == 7);
    CHECK_FAILS(add_dense(exchange, "late", 1), BRV_ERR_ARGUMENT, "before the first call");
    CHECK_FAILS(brv_exchange_set_density(exchange, "late", 0.5), BRV_ERR_ARGUMENT,
                "no tensor is named \"late\"");
    CHECK_FAILS(brv_exchange_set_density(exchange, "bias", 0.5), BRV_ERR_ARGUMENT, "is topk or gtopk");
    CHECK_FAILS(brv_exchange_set_density(exchange, "more", 0), BRV_ERR_ARGUMENT, "expected above 0");
    CHECK_FAILS(brv_exchange_residual(exchange, "late", out, 1), BRV_ERR_ARGUMENT, "name is \"late\"");
    CHECK_FAILS(brv_exchange_residual(exchange, "more", out, 1), BRV_ERR_ARGUMENT, "expected 7");
    CHECK(brv_exchange_residual(exchange, "more", out, BIAS) == BRV_OK && out[0] == 1 && out[6] == 0);
    brv_exchange_free(exchange);
}

int main(void)
{
    brv_group *group = join(), *alone = NULL;

    each_as_its_own_call(group);
    rounded_values_lose_nothing(group);
    signs_are_voted_on(group);
    goes_on(group);
    loading_keeps_densities(group);
    asking_takes_no_turn(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    CHECK(brv_group_solo(&alone) == BRV_OK);
    arguments(alone);
    brv_group_free(alone);
    return 0;
}
