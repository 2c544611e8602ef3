// The header is C++ as well: one translation unit that uses it.
#include <brevity.h>
#include <brevity.h>
#include <vector>

int main()
{
    brv_group *group = nullptr;
    std::vector<float> values(8, 1.0f);
    if (brv_group_solo(&group) != BRV_OK)
        return 1;
    brv_status status = brv_all_reduce(group, values.data(), values.data(), values.size(), BRV_F32,
                                       BRV_AVERAGE);
    brv_group_free(group);
    return status == BRV_OK && values[7] == 1.0f ? 0 : 1;
}
