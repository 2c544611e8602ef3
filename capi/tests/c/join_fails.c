/* The environment is wrong: no group, and a text that names the variable. */
#include "check.h"

int main(void)
{
    float value;
    brv_group *group = (brv_group *)&value;

    CHECK_FAILS(brv_group_join(NULL, &group), BRV_ERR_ENVIRONMENT, "BREVITY_RANK is \"three\"");
    CHECK(group == NULL && brv_last_error_rank() == -1);
    brv_group_free(group);
    return 0;
}
