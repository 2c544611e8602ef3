/* For the tests of dense collectives: elements of every type, as integers that are small enough to be exact
 * in each of them. */
#ifndef DENSE_H
#define DENSE_H

#include "check.h"

#define MOST_RANKS 8

/* Bytes of an element of each brv_type. */
static const size_t SIZES[] = {0, 4, 8, 4, 8, 4, 8, 1, 1, 2, 2, 2, 2, 1, 1};

static inline int is_float(brv_type type)
{
    return type == BRV_F32 || type == BRV_F64 || type == BRV_F16 || type == BRV_BF16;
}

static inline int is_unsigned(brv_type type)
{
    return type == BRV_U8 || type == BRV_U16 || type == BRV_U32 || type == BRV_U64 || type == BRV_BYTES;
}

static inline int is_defined(brv_type type, brv_reduction reduction)
{
    int is_bits = reduction == BRV_AND || reduction == BRV_OR || reduction == BRV_XOR;

    if (type == BRV_BYTES)
        return 0;
    if (type == BRV_BOOL)
        return is_bits;
    return is_float(type) ? !is_bits : reduction != BRV_AVERAGE;
}

/* The 16 bits of an integer of less than 2049. */
static inline uint16_t to_f16(int64_t value)
{
    uint32_t magnitude = (uint32_t)(value < 0 ? -value : value), exponent = 0;

    if (magnitude == 0)
        return 0;
    while (magnitude >> (exponent + 1) != 0)
        exponent++;
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (exponent + 15) << 10 |
                      (exponent <= 10 ? magnitude << (10 - exponent) : magnitude >> (exponent - 10)) % 1024);
}

static inline int64_t of_f16(uint16_t bits)
{
    int exponent = (bits >> 10 & 31) - 15;
    double magnitude = exponent == -15 ? 0 : ldexp(1024 + bits % 1024, exponent - 10);

    CHECK(magnitude == floor(magnitude) && exponent < 16);
    return (int64_t)(bits >> 15 ? -magnitude : magnitude);
}

/* Writes an integer as element i. */
static inline void store(brv_type type, void *memory, size_t i, int64_t value)
{
    char *place = (char *)memory + i * SIZES[type];
    float single = (float)value;
    double real = (double)value;
    uint64_t bits = (uint64_t)value;
    uint16_t half = to_f16(type == BRV_F16 ? value : 0);
    uint32_t word;

    memcpy(&word, &single, 4);
    if (type == BRV_F32)
        memcpy(place, &single, 4);
    else if (type == BRV_F64)
        memcpy(place, &real, 8);
    else if (type == BRV_F16)
        memcpy(place, &half, 2);
    else if (type == BRV_BF16) {
        half = (uint16_t)(word >> 16);
        memcpy(place, &half, 2);
    } else {
        /* The lowest bytes of an integer, in either order of bytes. */
        uint8_t byte = (uint8_t)bits;
        uint16_t two = (uint16_t)bits;
        uint32_t four = (uint32_t)bits;
        const void *from[] = {NULL, &byte, &two, NULL, &four, NULL, NULL, NULL, &bits};
        memcpy(place, from[SIZES[type]], SIZES[type]);
    }
}

/* Reads element i, which must be an integer. */
static inline int64_t load(brv_type type, const void *memory, size_t i)
{
    const char *place = (const char *)memory + i * SIZES[type];
    float single;
    double real;
    uint8_t byte;
    uint16_t two;
    uint32_t four;
    uint64_t eight;

    memcpy(&byte, place, 1);
    if (SIZES[type] == 1)
        return type == BRV_I8 ? (int8_t)byte : byte;
    memcpy(&two, place, 2);
    if (type == BRV_F16)
        return of_f16(two);
    if (type == BRV_BF16) {
        four = (uint32_t)two << 16;
        memcpy(&single, &four, 4);
        return (int64_t)single;
    }
    if (SIZES[type] == 2)
        return type == BRV_I16 ? (int16_t)two : two;
    memcpy(&four, place, 4);
    memcpy(&single, place, 4);
    if (type == BRV_F32) {
        CHECK(single == floorf(single));
        return (int64_t)single;
    }
    if (SIZES[type] == 4)
        return type == BRV_I32 ? (int64_t)(int32_t)four : (int64_t)four;
    memcpy(&eight, place, 8);
    memcpy(&real, place, 8);
    return type == BRV_F64 ? (int64_t)real : (int64_t)eight;
}

/* What an integer is in a type: others wrap. */
static inline int64_t fitted(brv_type type, int64_t value)
{
    uint64_t memory = 0;

    store(type, &memory, 0, value);
    return load(type, &memory, 0);
}

/* Element i of a rank. Averages are integers. */
static inline int64_t value_of(brv_type type, brv_reduction reduction, int32_t size, int32_t rank, size_t i)
{
    int limit = reduction == BRV_PRODUCT ? 3 : reduction == BRV_AVERAGE ? 5 : 20;
    int64_t value = number(7 + (uint32_t)type, rank, i, limit);

    if (type == BRV_BOOL)
        return value & 1;
    if (is_unsigned(type))
        value += limit;
    return reduction == BRV_AVERAGE ? value * size : value;
}

static inline int64_t combined(brv_reduction reduction, int64_t a, int64_t b)
{
    switch (reduction) {
    case BRV_MAX: return a > b ? a : b;
    case BRV_MIN: return a < b ? a : b;
    case BRV_PRODUCT: return a * b;
    case BRV_AND: return a & b;
    case BRV_OR: return a | b;
    case BRV_XOR: return a ^ b;
    default: return a + b;
    }
}

#endif
