/* Loaded before the library (LD_PRELOAD): damages the first element of results, so that the programs of
 * bench/osu have something to find. */
#define _GNU_SOURCE
#include <brevity.h>
#include <dlfcn.h>
#include <stdlib.h>

/* The library's own function. */
static void find(const char *name, void *function)
{
    *(void **)function = dlsym(RTLD_NEXT, name);
    if (*(void **)function == NULL)
        abort();
}

brv_status brv_all_reduce(brv_group *group, const void *in, void *out, size_t n, brv_type type,
                          brv_reduction reduction, const brv_options *options)
{
    brv_status (*own)(brv_group *, const void *, void *, size_t, brv_type, brv_reduction,
                      const brv_options *);
    brv_status status;

    find("brv_all_reduce", &own);
    status = own(group, in, out, n, type, reduction, options);
    /* The programs' own sums are of other types. */
    if (type == BRV_I8)
        *(char *)out ^= 1;
    return status;
}

brv_status brv_recv(brv_group *group, void *data, size_t n, brv_type type, int32_t from, int32_t tag,
                    brv_message *message, const brv_options *options)
{
    brv_status (*own)(brv_group *, void *, size_t, brv_type, int32_t, int32_t, brv_message *,
                      const brv_options *);
    brv_status status;

    find("brv_recv", &own);
    status = own(group, data, n, type, from, tag, message, options);
    if (type == BRV_I8)
        *(char *)data ^= 1;
    return status;
}

brv_status brv_put(brv_group *group, const void *data, size_t bytes, brv_remote_memory *to, size_t offset,
                   const brv_options *options)
{
    brv_status (*own)(brv_group *, const void *, size_t, brv_remote_memory *, size_t, const brv_options *);

    find("brv_put", &own);
    return own(group, data, bytes - 1, to, offset, options);
}

brv_status brv_gtopk_average(brv_group *group, brv_feedback *feedback, float *gradient, size_t n,
                             double density, const brv_options *options)
{
    brv_status (*own)(brv_group *, brv_feedback *, float *, size_t, double, const brv_options *);
    brv_status status;

    find("brv_gtopk_average", &own);
    status = own(group, feedback, gradient, n, density, options);
    *gradient += 1;
    return status;
}

brv_status brv_topk_all_reduce(brv_group *group, const uint32_t *indices, const float *values, size_t count,
                               size_t dim, size_t limit, brv_values format, brv_sparse *sum, brv_sparse *kept,
                               const brv_options *options)
{
    brv_status (*own)(brv_group *, const uint32_t *, const float *, size_t, size_t, size_t, brv_values,
                      brv_sparse *, brv_sparse *, const brv_options *);
    const uint32_t index = 0;
    const float value = 9;
    brv_status status;

    find("brv_topk_all_reduce", &own);
    status = own(group, indices, values, count, dim, limit, format, sum, kept, options);
    return status == BRV_OK ? brv_sparse_set(sum, &index, &value, 1, dim) : status;
}
