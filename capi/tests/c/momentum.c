/* Residuals with momentum as objects: what they keep and select is what the formulas say, a state goes on
 * after a restart, and what makes no sense is refused. Numbers are such that sums are exact. */
#include "compressed.h"

enum { STEPS = 6 };

static brv_momentum_residual *new_residual(size_t n, brv_momentum rule, double clip)
{
    brv_momentum_residual *residual = NULL;

    CHECK(brv_momentum_residual_new(n, rule, 0.5, clip, 4, &residual) == BRV_OK && residual != NULL);
    return residual;
}

static void fill(float *values, uint32_t seed, int32_t rank)
{
    size_t i;

    for (i = 0; i < DIM; i++)
        values[i] = (float)(64 * number(seed, rank, i, 100));
}

static void largest_of(const float *values, size_t k, float *taken)
{
    float left[DIM];
    size_t i;

    memcpy(left, values, sizeof left);
    memset(taken, 0, sizeof left);
    for (; k > 0; k--) {
        size_t largest = 0;

        for (i = 1; i < DIM; i++)
            if (fabsf(left[i]) > fabsf(left[largest]))
                largest = i;
        taken[largest] = left[largest];
        left[largest] = 0;
    }
}

static void is(const brv_momentum_residual *residual, const float *values, const float *velocity)
{
    const float *v, *u;
    size_t i, n;

    CHECK(brv_momentum_residual_view(residual, &v, &u, &n) == BRV_OK && n == DIM);
    CHECK((u == NULL) == (velocity == NULL));
    for (i = 0; i < DIM; i++)
        CHECK(v[i] == values[i] && (u == NULL || u[i] == velocity[i]));
}

static void entries_are(const brv_sparse *sparse, const float *expected)
{
    float dense[DIM];

    to_dense(sparse, dense);
    CHECK(memcmp(dense, expected, sizeof dense) == 0);
}

/* One step of the formulas: what is taken is left in taken, what is kept in v and u. */
static void formulas(brv_momentum rule, const float *gradient, size_t k, float *v, float *u, float *taken)
{
    size_t i;

    for (i = 0; i < DIM; i++) {
        if (rule == BRV_MOMENTUM_AWARE) {
            v[i] += gradient[i];
            continue;
        }
        u[i] = 0.5f * u[i] + gradient[i];
        v[i] += rule == BRV_MOMENTUM_NESTEROV ? 0.5f * u[i] + gradient[i] : u[i];
    }
    largest_of(v, k, taken);
    for (i = 0; i < DIM; i++)
        if (taken[i] != 0) {
            v[i] = rule == BRV_MOMENTUM_AWARE ? 0.5f * v[i] : 0;
            u[i] = 0;
        }
}

/* In one pass, in two, by a threshold, and of entries that the program selects. In some steps half of the
 * entries come back as not delivered. */
static void steps(brv_momentum rule)
{
    brv_momentum_residual *fed = new_residual(DIM, rule, 0), *added = new_residual(DIM, rule, 0);
    brv_momentum_residual *over = new_residual(DIM, rule, 0), *taken_of = new_residual(DIM, rule, 0);
    brv_momentum_residual *all[4];
    brv_selector selector = BRV_SELECTOR_INIT(BRV_SELECT_TOP_K, K);
    brv_sparse *selected = new_sparse(), *back = new_sparse();
    float gradient[DIM], v[DIM], u[DIM], taken[DIM], u_before[DIM];
    const float *view, *velocity = rule == BRV_MOMENTUM_AWARE ? NULL : u;
    const uint32_t *indices;
    const float *values;
    uint32_t step;
    size_t i, n, count;

    all[0] = fed, all[1] = added, all[2] = over, all[3] = taken_of;
    memset(v, 0, sizeof v);
    memset(u, 0, sizeof u);
    for (step = 0; step < STEPS; step++) {
        float threshold = 0;

        fill(gradient, step, 0);
        for (i = 0; i < DIM; i++)
            u_before[i] = 0.5f * u[i] + gradient[i];
        formulas(rule, gradient, K, v, u, taken);
        for (i = 0; i < DIM; i++)
            if (taken[i] != 0 && (threshold == 0 || fabsf(taken[i]) < threshold))
                threshold = fabsf(taken[i]);
        CHECK(brv_momentum_residual_feed(fed, gradient, DIM, BRV_F32, K, selected) == BRV_OK);
        entries_are(selected, taken);
        CHECK(brv_momentum_residual_add(added, gradient, DIM, BRV_F32) == BRV_OK);
        CHECK(brv_momentum_residual_select(added, K, selected) == BRV_OK);
        entries_are(selected, taken);
        CHECK(brv_momentum_residual_add(over, gradient, DIM, BRV_F32) == BRV_OK);
        CHECK(brv_momentum_residual_select_over(over, threshold, K, selected) == BRV_OK);
        entries_are(selected, taken);
        CHECK(brv_momentum_residual_add(taken_of, gradient, DIM, BRV_F32) == BRV_OK);
        CHECK(brv_momentum_residual_view(taken_of, &view, NULL, &n) == BRV_OK);
        CHECK(brv_sparse_select(selected, view, n, &selector) == BRV_OK);
        entries_are(selected, taken);
        CHECK(brv_momentum_residual_take(taken_of, selected) == BRV_OK);
        CHECK_FAILS(brv_momentum_residual_take(taken_of, selected), BRV_ERR_ARGUMENT, "at once");
        CHECK_FAILS(brv_momentum_residual_select(fed, 1, back), BRV_ERR_ARGUMENT, "at once");
        for (i = 0; i < 4; i++)
            is(all[i], v, velocity);
        if (step % 2 == 0)
            continue;
        CHECK(brv_sparse_view(selected, &indices, &values, &count) == BRV_OK && count == K);
        CHECK(brv_sparse_set(back, indices, values, K / 2, DIM) == BRV_OK);
        for (i = 0; i < 4; i++)
            CHECK(brv_momentum_residual_put_back(all[i], back, NULL) == BRV_OK);
        for (i = 0; i < K / 2; i++) {
            size_t place = indices[i];

            v[place] += rule == BRV_MOMENTUM_AWARE ? 0.5f * values[i] : values[i];
            u[place] = u_before[place];
        }
        for (i = 0; i < 4; i++)
            is(all[i], v, velocity);
    }
    for (i = 0; i < 4; i++)
        brv_momentum_residual_free(all[i]);
    brv_sparse_free(selected);
    brv_sparse_free(back);
}

/* What rounding takes from entries that were delivered leaves their velocity at 0; a whole delivery leaves
 * the velocity as it is. */
static void delivered(void)
{
    brv_momentum_residual *residual = new_residual(DIM, BRV_MOMENTUM_CORRECTED, 0);
    brv_sparse *selected = new_sparse(), *errors = new_sparse();
    float gradient[DIM], v[DIM], u[DIM], taken[DIM], two[2] = {3, -5};
    uint32_t indices[2];
    const uint32_t *places;
    const float *values;
    size_t count;

    memset(v, 0, sizeof v);
    memset(u, 0, sizeof u);
    fill(gradient, 3, 0);
    formulas(BRV_MOMENTUM_CORRECTED, gradient, K, v, u, taken);
    CHECK(brv_momentum_residual_feed(residual, gradient, DIM, BRV_F32, K, selected) == BRV_OK);
    CHECK(brv_sparse_view(selected, &places, &values, &count) == BRV_OK && count == K);
    indices[0] = places[0], indices[1] = places[1];
    CHECK(brv_sparse_set(errors, indices, two, 2, DIM) == BRV_OK);
    CHECK(brv_momentum_residual_put_back(residual, errors, selected) == BRV_OK);
    v[indices[0]] += 3, v[indices[1]] -= 5;
    is(residual, v, u);
    CHECK(brv_momentum_residual_deliver(residual) == BRV_OK);
    memset(v, 0, sizeof v);
    is(residual, v, u);
    brv_momentum_residual_free(residual);
    brv_sparse_free(selected);
    brv_sparse_free(errors);
}

/* With four ranks a clip of 20 is 10 for each: a gradient of the norm 20 is halved. */
static void clipped(void)
{
    brv_momentum_residual *residual = NULL;
    const float *v, *u;
    float gradient[4] = {10, -10, 10, 10};
    size_t n;

    residual = new_residual(4, BRV_MOMENTUM_CORRECTED, 20);
    CHECK(brv_momentum_residual_add(residual, gradient, 4, BRV_F32) == BRV_OK);
    CHECK(brv_momentum_residual_view(residual, &v, &u, &n) == BRV_OK && n == 4);
    CHECK(v[0] == 5 && v[1] == -5 && u[2] == 5 && u[3] == 5);
    brv_momentum_residual_free(residual);
}

static void saved(brv_momentum rule)
{
    brv_momentum_residual *residual = new_residual(DIM, rule, 0), *loaded = new_residual(DIM, rule, 0);
    brv_momentum_residual *other = new_residual(DIM - 1, rule, 0);
    brv_sparse *selected = new_sparse(), *again = new_sparse();
    float gradient[DIM], expected[DIM];
    unsigned char *bytes;
    uint32_t step;
    size_t size, i;

    for (step = 0; step < 3; step++) {
        fill(gradient, step, 0);
        CHECK(brv_momentum_residual_feed(residual, gradient, DIM, BRV_F32, K, selected) == BRV_OK);
    }
    CHECK(brv_momentum_residual_saved_size(residual, &size) == BRV_OK);
    CHECK(size > DIM * sizeof(float) * (rule == BRV_MOMENTUM_AWARE ? 1 : 2));
    bytes = malloc(size + 1);
    CHECK(bytes != NULL);
    bytes[size] = 0;
    CHECK_FAILS(brv_momentum_residual_save(residual, bytes, size - 1), BRV_ERR_ARGUMENT, "saved_size");
    CHECK(brv_momentum_residual_save(residual, bytes, size) == BRV_OK);
    for (i = 0; i < 8 * size; i += i < 8 * 60 ? 7 : 997) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_momentum_residual_load(loaded, bytes, size), BRV_ERR_ARGUMENT, "saved state");
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    CHECK_FAILS(brv_momentum_residual_load(loaded, bytes, size - 1), BRV_ERR_ARGUMENT, "saved state ends");
    CHECK_FAILS(brv_momentum_residual_load(loaded, bytes, size + 1), BRV_ERR_ARGUMENT, "1 bytes follow");
    CHECK_FAILS(brv_momentum_residual_load(other, bytes, size), BRV_ERR_ARGUMENT, "saved state");
    CHECK(brv_momentum_residual_load(loaded, bytes, size) == BRV_OK);
    for (step = 3; step < STEPS; step++) {
        fill(gradient, step, 0);
        CHECK(brv_momentum_residual_feed(residual, gradient, DIM, BRV_F32, K, selected) == BRV_OK);
        CHECK(brv_momentum_residual_feed(loaded, gradient, DIM, BRV_F32, K, again) == BRV_OK);
        to_dense(selected, expected);
        entries_are(again, expected);
    }
    free(bytes);
    brv_momentum_residual_free(residual);
    brv_momentum_residual_free(loaded);
    brv_momentum_residual_free(other);
    brv_sparse_free(selected);
    brv_sparse_free(again);
}

static void refusals(void)
{
    static const brv_momentum rules[] = {BRV_MOMENTUM_CORRECTED, BRV_MOMENTUM_AWARE};
    brv_momentum_residual *residual = NULL;
    brv_sparse *selected = new_sparse();
    float values[DIM];
    const float *view, *velocity;
    size_t n, i;

    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_NONE, 0.5, 0, 1, &residual), BRV_ERR_ARGUMENT,
                "rule is 0");
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_CORRECTED, 1, 0, 1, &residual), BRV_ERR_ARGUMENT,
                "momentum 1");
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_AWARE, 0, 0, 1, &residual), BRV_ERR_ARGUMENT,
                "momentum 0");
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_AWARE, 0.5, 1, 1, &residual), BRV_ERR_ARGUMENT,
                "clip is set");
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_CORRECTED, 0.5, -1, 1, &residual), BRV_ERR_ARGUMENT,
                "clipping norm -1");
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_CORRECTED, 0.5, 1, 0, &residual), BRV_ERR_ARGUMENT,
                "world size 0");
    CHECK(residual == NULL);
    CHECK_FAILS(brv_momentum_residual_new(4, BRV_MOMENTUM_CORRECTED, 0.5, 0, 1, NULL), BRV_ERR_ARGUMENT,
                "residual is NULL");
    CHECK_FAILS(brv_momentum_residual_deliver(NULL), BRV_ERR_ARGUMENT, "residual is NULL");
    for (i = 0; i < 2; i++) {
        residual = new_residual(DIM, rules[i], 0);
        fill(values, 4, 0);
        CHECK(brv_momentum_residual_add(residual, values, DIM, BRV_F32) == BRV_OK);
        CHECK_FAILS(brv_momentum_residual_add(residual, values, DIM - 1, BRV_F32), BRV_ERR_ARGUMENT,
                    "n is 699");
        CHECK_FAILS(brv_momentum_residual_add(residual, NULL, DIM, BRV_F32), BRV_ERR_ARGUMENT,
                    "gradient is NULL");
        CHECK_FAILS(brv_momentum_residual_add(residual, values, DIM, BRV_I32), BRV_ERR_ARGUMENT,
                    "type is i32");
        CHECK(brv_momentum_residual_view(residual, &view, &velocity, &n) == BRV_OK);
        CHECK_FAILS(brv_momentum_residual_add(residual, view, DIM, BRV_F32), BRV_ERR_ARGUMENT, "overlap");
        values[33] = NAN;
        CHECK_FAILS(brv_momentum_residual_feed(residual, values, DIM, BRV_F32, 9, selected), BRV_ERR_ARGUMENT,
                    "index 33");
        CHECK(brv_sparse_count(selected, &n, NULL) == BRV_OK && n == 0);
        CHECK_FAILS(brv_momentum_residual_select_over(residual, NAN, 1, selected), BRV_ERR_ARGUMENT, "NaN");
        CHECK(brv_sparse_set(selected, NULL, NULL, 0, DIM - 1) == BRV_OK);
        CHECK_FAILS(brv_momentum_residual_take(residual, selected), BRV_ERR_ARGUMENT, "the dim of entries");
        CHECK_FAILS(brv_momentum_residual_put_back(residual, selected, NULL), BRV_ERR_ARGUMENT, "the dim of");
        CHECK_FAILS(brv_momentum_residual_put_back(residual, NULL, NULL), BRV_ERR_ARGUMENT,
                    "entries is NULL");
        CHECK(brv_sparse_set(selected, NULL, NULL, 0, 0) == BRV_OK);
        /* Nothing was taken so far. */
        CHECK(brv_momentum_residual_select(residual, 3, selected) == BRV_OK);
        CHECK(brv_sparse_count(selected, &n, NULL) == BRV_OK && n == 3);
        CHECK(brv_sparse_set(selected, NULL, NULL, 0, 0) == BRV_OK);
        brv_momentum_residual_free(residual);
    }
    brv_momentum_residual_free(NULL);
    brv_sparse_free(selected);
}

int main(void)
{
    static const brv_momentum rules[] = {BRV_MOMENTUM_CORRECTED, BRV_MOMENTUM_NESTEROV, BRV_MOMENTUM_AWARE};
    size_t i;

    for (i = 0; i < 3; i++) {
        steps(rules[i]);
        saved(rules[i]);
    }
    delivered();
    clipped();
    refusals();
    return 0;
}
