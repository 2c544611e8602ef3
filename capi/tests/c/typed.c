/* Gradients of double, binary16 and bfloat16: averages are those of float gradients, rounded once, however a
 * step is made: `typed short` makes it in one way. Other types are refused. */
#include "check.h"

enum { TENSORS = 3, MOST = 400, STEPS = 3 };

static const size_t lengths[TENSORS] = {400, 7, 300};
static const brv_type types[4] = {BRV_F32, BRV_F64, BRV_F16, BRV_BF16};

/* The gradients of all tensors, in the type of a test. */
typedef union values {
    float f32[TENSORS][MOST];
    double f64[TENSORS][MOST];
    uint16_t bits[TENSORS][MOST];
} values;

static brv_exchange *exchange_of(brv_group *group)
{
    brv_exchange *exchange = NULL;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_low_rank(exchange, "matrix", 20, 20, 2) == BRV_OK);
    CHECK(add_dense(exchange, "bias", lengths[1]) == BRV_OK);
    CHECK(add_gtopk(exchange, "sparse", lengths[2], 0.05) == BRV_OK);
    return exchange;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Of a whole number up to 100, exactly. */
static uint16_t half_of(float value, brv_type type)
{
    uint32_t bits = bits_of(value);

    if (type == BRV_BF16 || value == 0)
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits >> 31 << 15) | ((((bits >> 23) & 255) - 112) << 10) | ((bits >> 13) & 1023));
}

static double value_of(uint16_t half, brv_type type)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    double magnitude;
    int exponent = (half >> 10) & 31;

    memcpy(&value, &bits, sizeof value);
    if (type == BRV_BF16)
        return value;
    magnitude = exponent > 0 ? ldexp(1024 + (half & 1023), exponent - 25) : ldexp(half & 1023, -24);
    return (half >> 15) ? -magnitude : magnitude;
}

static void *tensor_of(values *all, size_t tensor, brv_type type)
{
    if (type == BRV_F32)
        return all->f32[tensor];
    return type == BRV_F64 ? (void *)all->f64[tensor] : (void *)all->bits[tensor];
}

static double at(const values *all, size_t tensor, size_t i, brv_type type)
{
    if (type == BRV_F32)
        return all->f32[tensor][i];
    return type == BRV_F64 ? all->f64[tensor][i] : value_of(all->bits[tensor][i], type);
}

/* The same numbers in both. */
static void fill(values *all, values *floats, brv_type type, uint32_t step, int32_t rank)
{
    size_t tensor, i;

    for (tensor = 0; tensor < TENSORS; tensor++)
        for (i = 0; i < lengths[tensor]; i++) {
            float value = (float)number(TENSORS * step + (uint32_t)tensor, rank, i, 100);

            floats->f32[tensor][i] = value;
            if (type == BRV_F32)
                all->f32[tensor][i] = value;
            else if (type == BRV_F64)
                all->f64[tensor][i] = value;
            else
                all->bits[tensor][i] = half_of(value, type);
            CHECK(at(all, tensor, i, type) == value);
        }
}

/* Half a unit in the last place, of what is not too small for all its digits. */
static void are_rounded(const values *all, const values *floats, brv_type type)
{
    double half_unit = type == BRV_F16 ? 1.0 / 2048 : type == BRV_BF16 ? 1.0 / 256 : 0;
    size_t tensor, i;

    for (tensor = 0; tensor < TENSORS; tensor++)
        for (i = 0; i < lengths[tensor]; i++) {
            double expected = floats->f32[tensor][i], found = at(all, tensor, i, type);

            CHECK(fabs(found - expected) <= fabs(expected) * half_unit + (half_unit > 0 ? 1e-7 : 0));
        }
}

/* One step, made in one of four ways. The last rank has no gradient in the last one. */
static void step_by(int way, brv_exchange *exchange, values *all, brv_type type, int is_last)
{
    void *pointers[TENSORS];
    brv_request *request = NULL;
    size_t tensor;

    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = tensor_of(all, tensor, type);
    if (way == 0) {
        CHECK(brv_exchange_average_typed(exchange, pointers, TENSORS, type, NULL) == BRV_OK);
    } else if (way == 1) {
        CHECK(brv_iexchange_average_typed(exchange, pointers, TENSORS, type, &request, NULL) == BRV_OK);
        CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
        brv_request_free(request);
    } else if (way == 2) {
        CHECK(brv_exchange_begin(exchange) == BRV_OK);
        for (tensor = TENSORS; tensor-- > 1;)
            CHECK(brv_exchange_ready_typed(exchange, tensor, pointers[tensor], lengths[tensor], type)
                  == BRV_OK);
        CHECK(brv_exchange_finish_typed(exchange, pointers, TENSORS, type) == BRV_OK);
    } else if (is_last) {
        CHECK(brv_exchange_step_empty_typed(exchange, pointers, TENSORS, type, NULL) == BRV_OK);
    } else {
        CHECK(brv_exchange_average_typed(exchange, pointers, TENSORS, type, NULL) == BRV_OK);
    }
}

static void same_averages(brv_group *group, brv_type type, int way)
{
    static values typed, floats;
    static float residual[MOST], expected[MOST];
    brv_exchange *ours = exchange_of(group), *theirs = exchange_of(group);
    int32_t rank = brv_group_rank(group);
    int is_last = rank == brv_group_size(group) - 1;
    uint32_t step;

    for (step = 0; step < STEPS; step++) {
        fill(&typed, &floats, type, step, rank);
        step_by(way, ours, &typed, type, is_last);
        if (way == 3 && is_last)
            memset(&floats, 0, sizeof floats);
        step_by(0, theirs, &floats, BRV_F32, 0);
        are_rounded(&typed, &floats, type);
    }
    CHECK(brv_exchange_residual(ours, "sparse", residual, lengths[2]) == BRV_OK);
    CHECK(brv_exchange_residual(theirs, "sparse", expected, lengths[2]) == BRV_OK);
    CHECK(memcmp(residual, expected, lengths[2] * sizeof *residual) == 0);
    brv_exchange_free(ours);
    brv_exchange_free(theirs);
}

/* The functions without a type have that of floats. */
static void floats_need_no_type(brv_group *group)
{
    static values typed, floats;
    brv_exchange *ours = exchange_of(group), *theirs = exchange_of(group);
    float *pointers[TENSORS];
    size_t tensor;

    fill(&typed, &floats, BRV_F32, 0, brv_group_rank(group));
    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = floats.f32[tensor];
    step_by(2, ours, &typed, BRV_F32, 0);
    CHECK(brv_exchange_begin(theirs) == BRV_OK);
    CHECK(brv_exchange_ready_typed(theirs, 1, pointers[1], lengths[1], BRV_F32) == BRV_OK);
    CHECK(brv_exchange_ready(theirs, 0, pointers[0], lengths[0]) == BRV_OK);
    CHECK(brv_exchange_finish(theirs, pointers, TENSORS) == BRV_OK);
    are_rounded(&typed, &floats, BRV_F32);
    brv_exchange_free(ours);
    brv_exchange_free(theirs);
}

/* A double that is no float is not finite, on all ranks. */
static void out_of_range(brv_group *group)
{
    static values typed, floats;
    brv_exchange *exchange = exchange_of(group);
    void *pointers[TENSORS];
    size_t tensor;

    fill(&typed, &floats, BRV_F64, 0, brv_group_rank(group));
    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = typed.f64[tensor];
    if (brv_group_rank(group) == 0)
        typed.f64[1][3] = 1e300;
    CHECK_FAILS(brv_exchange_average_typed(exchange, pointers, TENSORS, BRV_F64, NULL), BRV_ERR_NON_FINITE,
                "bias");
    CHECK(typed.f64[2][0] == floats.f32[2][0]);
    brv_exchange_free(exchange);
}

/* All ranks are left, and all have delivered the last step. Ends the group. */
static void goes_on(brv_group *group)
{
    static values typed, floats;
    brv_exchange *ours = exchange_of(group);
    void *pointers[TENSORS];
    brv_group *left = NULL;
    int32_t delivered = 7, rank = brv_group_rank(group), size = brv_group_size(group), other;
    double sum = 0;
    size_t tensor;

    CHECK(brv_exchange_keep_going(ours) == BRV_OK);
    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = typed.f64[tensor];
    fill(&typed, &floats, BRV_F64, 0, rank);
    step_by(0, ours, &typed, BRV_F64, 0);
    CHECK(brv_group_shrink(group, &left, NULL) == BRV_OK);
    CHECK_FAILS(brv_exchange_go_on_typed(ours, left, pointers, TENSORS, BRV_U8, &delivered, NULL),
                BRV_ERR_ARGUMENT, "type is u8");
    CHECK_FAILS(brv_exchange_go_on_typed(ours, left, pointers, TENSORS, BRV_F64, NULL, NULL),
                BRV_ERR_ARGUMENT, "delivered is NULL");
    CHECK(brv_exchange_go_on_typed(ours, left, pointers, TENSORS, BRV_F64, &delivered, NULL) == BRV_OK);
    CHECK(delivered == 0);
    fill(&typed, &floats, BRV_F64, 1, rank);
    step_by(0, ours, &typed, BRV_F64, 0);
    for (other = 0; other < size; other++)
        sum += number(TENSORS + 1, other, 5, 100);
    CHECK(fabs(typed.f64[1][5] - sum / size) < 1e-4);
    brv_exchange_free(ours);
    CHECK(brv_barrier(left, NULL) == BRV_OK);
    brv_group_free(left);
}

static void wrong_calls(brv_exchange *exchange, void **pointers)
{
    brv_request *request = NULL;
    void *crooked[TENSORS];
    size_t i;

    for (i = 0; i < 3; i++) {
        brv_type type = i == 0 ? BRV_I32 : i == 1 ? BRV_BYTES : (brv_type)99;
        const char *words = i == 0 ? "type is i32, expected one of gradients"
                                   : i == 1 ? "expected one of gradients" : "type is 99, expected a brv_type";

        CHECK_FAILS(brv_exchange_average_typed(exchange, pointers, TENSORS, type, NULL), BRV_ERR_ARGUMENT,
                    words);
        CHECK_FAILS(brv_iexchange_average_typed(exchange, pointers, TENSORS, type, &request, NULL),
                    BRV_ERR_ARGUMENT, words);
        CHECK(request == NULL);
        CHECK_FAILS(brv_exchange_ready_typed(exchange, 1, pointers[1], lengths[1], type), BRV_ERR_ARGUMENT,
                    words);
        CHECK_FAILS(brv_exchange_finish_typed(exchange, pointers, TENSORS, type), BRV_ERR_ARGUMENT, words);
        CHECK_FAILS(brv_exchange_step_empty_typed(exchange, pointers, TENSORS, type, NULL), BRV_ERR_ARGUMENT,
                    words);
    }
    memcpy(crooked, pointers, sizeof crooked);
    crooked[1] = (char *)crooked[1] + 4;
    CHECK_FAILS(brv_exchange_average_typed(exchange, crooked, TENSORS, BRV_F64, NULL), BRV_ERR_ARGUMENT,
                "multiple of 8");
    crooked[1] = NULL;
    CHECK_FAILS(brv_exchange_average_typed(exchange, crooked, TENSORS, BRV_BF16, NULL), BRV_ERR_ARGUMENT,
                "the gradient of \"bias\" is NULL");
    crooked[1] = (char *)pointers[0] + 4;
    CHECK_FAILS(brv_exchange_average_typed(exchange, crooked, TENSORS, BRV_BF16, NULL), BRV_ERR_ARGUMENT,
                "overlap");
    CHECK_FAILS(brv_exchange_average_typed(exchange, pointers, 2, BRV_F16, NULL), BRV_ERR_ARGUMENT,
                "tensors is 2");
    CHECK_FAILS(brv_exchange_average_typed(NULL, pointers, TENSORS, BRV_F16, NULL), BRV_ERR_ARGUMENT,
                "exchange is NULL");
    CHECK_FAILS(brv_iexchange_average_typed(exchange, pointers, TENSORS, BRV_F16, NULL, NULL),
                BRV_ERR_ARGUMENT, "request is NULL");
    CHECK_FAILS(brv_exchange_ready_typed(exchange, 1, pointers[1], lengths[1], BRV_F16), BRV_ERR_ARGUMENT,
                "has not begun");
}

/* All gradients of a step have one type. */
static void one_type_a_step(brv_exchange *exchange, void **pointers)
{
    brv_type type;

    for (type = BRV_F64; type <= BRV_BF16; type = type == BRV_F64 ? BRV_BF16 : (brv_type)99) {
        CHECK(brv_exchange_begin(exchange) == BRV_OK);
        CHECK(brv_exchange_ready_typed(exchange, 1, pointers[1], lengths[1], type) == BRV_OK);
        CHECK_FAILS(brv_exchange_ready_typed(exchange, 0, pointers[0], lengths[0], BRV_F16),
                    BRV_ERR_ARGUMENT, "type is f16, expected");
        CHECK_FAILS(brv_exchange_ready(exchange, 0, pointers[0], lengths[0]), BRV_ERR_ARGUMENT,
                    "type is f32, expected");
        CHECK_FAILS(brv_exchange_finish_typed(exchange, pointers, TENSORS, BRV_F32), BRV_ERR_ARGUMENT,
                    type == BRV_F64 ? "expected f64: that of" : "expected bf16: that of");
        CHECK(brv_exchange_finish_typed(exchange, pointers, TENSORS, type) == BRV_OK);
    }
}

static void refusals(void)
{
    static values all;
    void *pointers[TENSORS];
    brv_group *alone = NULL;
    brv_exchange *exchange;
    size_t tensor;

    CHECK(brv_group_solo(&alone) == BRV_OK);
    exchange = exchange_of(alone);
    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = all.f64[tensor];
    wrong_calls(exchange, pointers);
    one_type_a_step(exchange, pointers);
    brv_exchange_free(exchange);
    brv_group_free(alone);
}

int main(int count, char **arguments)
{
    int is_short = count > 1 && strcmp(arguments[1], "short") == 0, way;
    brv_group *group = join();
    size_t i;

    for (i = 0; i < 4; i++)
        for (way = is_short ? 2 : 0; way < (is_short ? 3 : 4); way++)
            same_averages(group, types[i], way);
    floats_need_no_type(group);
    out_of_range(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    goes_on(group);
    brv_group_free(group);
    refusals();
    return 0;
}
