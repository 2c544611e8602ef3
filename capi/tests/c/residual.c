/* Residuals as objects: what they select is what a plain search finds, nothing is lost by an exchange that is
 * made of them, and what makes no sense is refused. */
#include "compressed.h"

static brv_residual *new_residual(size_t n)
{
    brv_residual *residual = NULL;

    CHECK(brv_residual_new(n, &residual) == BRV_OK && residual != NULL);
    return residual;
}

/* Whole numbers, so that sums are exact. */
static void fill(float *values, uint32_t seed, int32_t rank)
{
    size_t i;

    for (i = 0; i < DIM; i++)
        values[i] = (float)number(seed, rank, i, 100);
}

static void values_are(const brv_residual *residual, const float *expected)
{
    const float *values;
    size_t i, n;

    CHECK(brv_residual_view(residual, &values, &n) == BRV_OK && n == DIM);
    for (i = 0; i < DIM; i++)
        CHECK(values[i] == expected[i]);
}

/* Takes the k largest entries of values, of equal ones those with lower indices. */
static void take_largest(float *values, size_t k, float *taken)
{
    size_t i;

    memset(taken, 0, DIM * sizeof *taken);
    for (; k > 0; k--) {
        size_t largest = 0;

        for (i = 1; i < DIM; i++)
            if (fabsf(values[i]) > fabsf(values[largest]))
                largest = i;
        taken[largest] = values[largest];
        values[largest] = 0;
    }
}

static void entries_are(const brv_sparse *sparse, const float *expected)
{
    float dense[DIM];
    size_t i;

    to_dense(sparse, dense);
    for (i = 0; i < DIM; i++)
        CHECK(dense[i] == expected[i]);
}

/* In three ways: added and selected in one pass, in two, and by a threshold. */
static void selections(void)
{
    float gradient[DIM], values[DIM], taken[DIM];
    brv_residual *fed = new_residual(DIM), *added = new_residual(DIM), *over = new_residual(DIM);
    brv_sparse *selected = new_sparse();
    uint32_t step;
    size_t i, count, k = 0;

    memset(values, 0, sizeof values);
    for (step = 0; step < 5; step++) {
        float threshold = 0;

        fill(gradient, step, 0);
        k = step == 3 ? 0 : 40 + step;
        for (i = 0; i < DIM; i++)
            values[i] += gradient[i];
        CHECK(brv_residual_add(added, gradient, DIM, BRV_F32) == BRV_OK);
        values_are(added, values);
        CHECK(brv_residual_add(over, gradient, DIM, BRV_F32) == BRV_OK);
        take_largest(values, k, taken);
        CHECK(brv_residual_feed(fed, gradient, DIM, BRV_F32, k, selected) == BRV_OK);
        entries_are(selected, taken);
        values_are(fed, values);
        CHECK(brv_residual_select(added, k, selected) == BRV_OK);
        entries_are(selected, taken);
        values_are(added, values);
        for (i = 0; i < DIM; i++)
            if (taken[i] != 0 && (threshold == 0 || fabsf(taken[i]) < threshold))
                threshold = fabsf(taken[i]);
        /* As many entries or more reach it: then the limit decides. */
        if (k > 0)
            CHECK(brv_residual_select_over(over, threshold, k, selected) == BRV_OK);
        else
            CHECK(brv_residual_select_over(over, 1e9f, 5, selected) == BRV_OK);
        entries_are(selected, taken);
        values_are(over, values);
    }
    CHECK(brv_residual_select_over(over, 50, DIM, selected) == BRV_OK);
    CHECK(brv_sparse_count(selected, &count, NULL) == BRV_OK && count > 0);
    for (i = 0; i < DIM; i++)
        if (fabsf(values[i]) >= 50)
            values[i] = 0;
    values_are(over, values);
    brv_sparse_free(selected);
    brv_residual_free(fed);
    brv_residual_free(added);
    brv_residual_free(over);
}

/* Gradients of all types are added in float. */
static void types(void)
{
    static const brv_type all[3] = {BRV_F64, BRV_BF16, BRV_F16};
    double doubles[DIM];
    uint16_t bits[DIM];
    float values[DIM], taken[DIM];
    brv_sparse *selected = new_sparse();
    size_t i, type;

    for (type = 0; type < 3; type++) {
        brv_residual *residual = new_residual(DIM);

        fill(values, 7, 0);
        for (i = 0; i < DIM; i++) {
            uint32_t word;

            if (type == 2)
                values[i] = values[i] > 0 ? 1.0f : -2.0f;
            memcpy(&word, &values[i], sizeof word);
            doubles[i] = values[i];
            bits[i] = type == 1 ? (uint16_t)(word >> 16) : values[i] > 0 ? 0x3c00 : 0xc000;
        }
        CHECK(brv_residual_add(residual, type == 0 ? (void *)doubles : (void *)bits, DIM, all[type])
              == BRV_OK);
        values_are(residual, values);
        for (i = 0; i < DIM; i++)
            values[i] *= 2;
        take_largest(values, 30, taken);
        CHECK(brv_residual_feed(residual, type == 0 ? (void *)doubles : (void *)bits, DIM, all[type], 30,
                                selected) == BRV_OK);
        entries_are(selected, taken);
        values_are(residual, values);
        brv_residual_free(residual);
    }
    brv_sparse_free(selected);
}

/* What is put back, cleared and set. */
static void changes(void)
{
    float values[DIM], expected[DIM], taken[DIM];
    brv_residual *residual = new_residual(DIM);
    brv_sparse *selected = new_sparse();
    size_t i;

    fill(values, 3, 0);
    CHECK(brv_residual_set(residual, values, DIM) == BRV_OK);
    values_are(residual, values);
    CHECK(brv_residual_select(residual, K, selected) == BRV_OK);
    CHECK(brv_residual_put_back(residual, selected) == BRV_OK);
    values_are(residual, values);
    memcpy(expected, values, sizeof values);
    take_largest(expected, K, taken);
    CHECK(brv_residual_clear_at(residual, selected) == BRV_OK);
    values_are(residual, expected);
    for (i = 0; i < DIM; i++)
        values[i] = 0;
    CHECK(brv_residual_set(residual, values, DIM) == BRV_OK);
    CHECK(brv_residual_select(residual, K, selected) == BRV_OK);
    entries_are(selected, values);
    brv_sparse_free(selected);
    brv_residual_free(residual);
}

static void saved(void)
{
    float values[DIM], none[DIM];
    brv_residual *residual = new_residual(DIM), *loaded = new_residual(DIM), *other = new_residual(DIM + 1);
    unsigned char *bytes;
    size_t size, i;

    fill(values, 5, 0);
    memset(none, 0, sizeof none);
    CHECK(brv_residual_set(residual, values, DIM) == BRV_OK);
    CHECK(brv_residual_saved_size(residual, &size) == BRV_OK && size > DIM * sizeof(float));
    bytes = malloc(size + 1);
    CHECK(bytes != NULL);
    bytes[size] = 0;
    CHECK_FAILS(brv_residual_save(residual, bytes, size - 1), BRV_ERR_ARGUMENT, "brv_residual_saved_size");
    CHECK(brv_residual_save(residual, bytes, size) == BRV_OK);
    for (i = 0; i < 8 * size; i += i < 8 * 60 ? 7 : 997) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_residual_load(loaded, bytes, size), BRV_ERR_ARGUMENT, "saved state");
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_residual_load(loaded, bytes, i / 8), BRV_ERR_ARGUMENT, "saved state ends");
    }
    CHECK_FAILS(brv_residual_load(loaded, bytes, size + 1), BRV_ERR_ARGUMENT, "1 bytes follow");
    CHECK_FAILS(brv_residual_load(other, bytes, size), BRV_ERR_ARGUMENT, "saved state");
    values_are(loaded, none);
    CHECK(brv_residual_load(loaded, bytes, size) == BRV_OK);
    values_are(loaded, values);
    free(bytes);
    brv_residual_free(residual);
    brv_residual_free(loaded);
    brv_residual_free(other);
}

/* gTop-k with residuals as objects: all that was handed in was delivered, or is in the residuals. */
static void an_exchange_of_residuals(brv_group *group)
{
    float gradient[DIM], sums[DIM], result[DIM];
    double balance[DIM];
    brv_residual *residual = new_residual(DIM);
    brv_sparse *selected = new_sparse(), *sum = new_sparse(), *kept = new_sparse();
    int32_t rank, size = brv_group_size(group);
    const uint32_t *indices;
    const float *values;
    uint32_t step;
    size_t i, count;

    memset(balance, 0, sizeof balance);
    for (step = 0; step < 6; step++) {
        fill(gradient, step, brv_group_rank(group));
        CHECK(brv_residual_feed(residual, gradient, DIM, BRV_F32, K, selected) == BRV_OK);
        CHECK(brv_sparse_view(selected, &indices, &values, &count) == BRV_OK && count == K);
        CHECK(brv_gtopk_all_reduce(group, indices, values, count, DIM, K, BRV_PUT_BACK_CONSERVING,
                                   BRV_VALUES_F32, sum, kept, NULL) == BRV_OK);
        CHECK(brv_residual_put_back(residual, kept) == BRV_OK);
        to_dense(sum, result);
        same_on_all_ranks(group, result);
        for (i = 0; i < DIM; i++) {
            for (rank = 0; rank < size; rank++)
                balance[i] += number(step, rank, i, 100);
            balance[i] -= result[i];
        }
    }
    CHECK(brv_residual_view(residual, &values, &count) == BRV_OK);
    memcpy(sums, values, sizeof sums);
    sum_over_ranks(group, sums);
    for (i = 0; i < DIM; i++)
        CHECK(sums[i] == (float)balance[i]);
    brv_residual_free(residual);
    brv_sparse_free(selected);
    brv_sparse_free(sum);
    brv_sparse_free(kept);
}

/* A refused call changes nothing. */
static void not_finite(brv_residual *residual, brv_sparse *selected)
{
    float values[DIM], before[DIM];
    double wide[DIM];
    uint32_t index = 5;
    float huge = 3e38f;
    size_t i, count;

    fill(before, 9, 0);
    before[5] = 2e38f;
    CHECK(brv_residual_set(residual, before, DIM) == BRV_OK);
    CHECK(brv_sparse_set(selected, &index, &huge, 1, DIM) == BRV_OK);
    for (i = 0; i < DIM; i++)
        values[i] = wide[i] = i == 33 ? NAN : 1;
    CHECK_FAILS(brv_residual_add(residual, values, DIM, BRV_F32), BRV_ERR_ARGUMENT, "index 33");
    CHECK_FAILS(brv_residual_feed(residual, values, DIM, BRV_F32, 9, selected), BRV_ERR_ARGUMENT, "index 33");
    CHECK_FAILS(brv_residual_set(residual, values, DIM), BRV_ERR_ARGUMENT, "index 33");
    wide[33] = -1e300;
    CHECK_FAILS(brv_residual_add(residual, wide, DIM, BRV_F64), BRV_ERR_ARGUMENT, "index 33");
    CHECK_FAILS(brv_residual_put_back(residual, selected), BRV_ERR_ARGUMENT, "index 5");
    CHECK(brv_sparse_count(selected, &count, NULL) == BRV_OK && count == 1);
    values_are(residual, before);
}

static void refusals(void)
{
    float values[DIM];
    brv_residual *residual = NULL;
    brv_sparse *selected = new_sparse(), *other = new_sparse();
    const float *view;
    size_t n;

    CHECK_FAILS(brv_residual_new(((size_t)1 << 32) + 1, &residual), BRV_ERR_ARGUMENT, "4294967296");
    CHECK(residual == NULL);
    CHECK_FAILS(brv_residual_new(1, NULL), BRV_ERR_ARGUMENT, "residual is NULL");
    residual = new_residual(DIM);
    fill(values, 0, 0);
    CHECK(brv_sparse_set(other, NULL, NULL, 0, DIM - 1) == BRV_OK);
    CHECK_FAILS(brv_residual_add(NULL, values, DIM, BRV_F32), BRV_ERR_ARGUMENT, "residual is NULL");
    CHECK_FAILS(brv_residual_add(residual, NULL, DIM, BRV_F32), BRV_ERR_ARGUMENT, "gradient is NULL");
    CHECK_FAILS(brv_residual_add(residual, (char *)values + 1, DIM, BRV_F32), BRV_ERR_ARGUMENT, "multiple");
    CHECK_FAILS(brv_residual_add(residual, values, DIM - 1, BRV_F32), BRV_ERR_ARGUMENT, "n is 699, expected");
    CHECK_FAILS(brv_residual_add(residual, values, DIM, BRV_I32), BRV_ERR_ARGUMENT, "type is i32");
    CHECK_FAILS(brv_residual_add(residual, values, DIM, (brv_type)0), BRV_ERR_ARGUMENT, "type is 0");
    CHECK_FAILS(brv_residual_feed(residual, values, DIM, BRV_F32, 1, NULL), BRV_ERR_ARGUMENT,
                "selected is NULL");
    CHECK_FAILS(brv_residual_select(NULL, 1, selected), BRV_ERR_ARGUMENT, "residual is NULL");
    CHECK_FAILS(brv_residual_select(residual, 1, NULL), BRV_ERR_ARGUMENT, "selected is NULL");
    CHECK_FAILS(brv_residual_select_over(residual, 0, 1, selected), BRV_ERR_ARGUMENT, "threshold 0");
    CHECK_FAILS(brv_residual_select_over(residual, NAN, 1, selected), BRV_ERR_ARGUMENT, "threshold NaN");
    CHECK_FAILS(brv_residual_put_back(residual, NULL), BRV_ERR_ARGUMENT, "entries is NULL");
    CHECK_FAILS(brv_residual_put_back(residual, other), BRV_ERR_ARGUMENT, "the dim of entries is 699");
    CHECK_FAILS(brv_residual_clear_at(residual, other), BRV_ERR_ARGUMENT, "the dim of entries is 699");
    CHECK_FAILS(brv_residual_clear_at(NULL, other), BRV_ERR_ARGUMENT, "residual is NULL");
    CHECK_FAILS(brv_residual_set(residual, values, DIM + 1), BRV_ERR_ARGUMENT, "n is 701");
    CHECK_FAILS(brv_residual_set(residual, NULL, DIM), BRV_ERR_ARGUMENT, "values is NULL");
    CHECK_FAILS(brv_residual_view(residual, NULL, &n), BRV_ERR_ARGUMENT, "values is NULL");
    CHECK_FAILS(brv_residual_view(residual, &view, NULL), BRV_ERR_ARGUMENT, "n is NULL");
    CHECK(brv_residual_view(residual, &view, &n) == BRV_OK);
    CHECK_FAILS(brv_residual_add(residual, view, DIM, BRV_F32), BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_residual_set(residual, view, DIM), BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_residual_saved_size(residual, NULL), BRV_ERR_ARGUMENT, "bytes is NULL");
    CHECK_FAILS(brv_residual_saved_size(NULL, &n), BRV_ERR_ARGUMENT, "residual is NULL");
    CHECK_FAILS(brv_residual_save(NULL, values, 9), BRV_ERR_ARGUMENT, "residual is NULL");
    CHECK_FAILS(brv_residual_load(residual, NULL, 9), BRV_ERR_ARGUMENT, "saved is NULL");
    not_finite(residual, selected);
    brv_residual_free(residual);
    brv_residual_free(NULL);
    residual = new_residual(0);
    CHECK(brv_residual_feed(residual, NULL, 0, BRV_F64, 5, selected) == BRV_OK);
    brv_residual_free(residual);
    brv_sparse_free(selected);
    brv_sparse_free(other);
}

int main(void)
{
    brv_group *group = join();

    selections();
    types();
    changes();
    saved();
    an_exchange_of_residuals(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    refusals();
    return 0;
}
