//! Reductions that the program defines.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brevity_collectives::data::{DataType, Reducer, UserReduction};

use crate::boundary::{check, guard};
use crate::callback::in_reduction;
use crate::element::{self, brv_reduction};
use crate::failure::Failure;
use crate::group::{brv_group, group_of};
use crate::status::brv_status;

/// As in C.
pub type brv_reduce_function =
    Option<unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int>;

/// The number of a group's first reduction of the program.
const FIRST: brv_reduction = 256;

/// The most bytes of a name.
const MAX_NAME_BYTES: usize = 255;

/// The reductions of a group, by rising numbers, which are not used again.
#[derive(Default)]
pub(crate) struct Reductions(Mutex<Vec<Numbered>>);

/// A number, with its reduction until that is unregistered.
type Numbered = Option<Arc<UserReduction>>;

impl Reductions {
    fn add(&self, reduction: UserReduction) -> Result<brv_reduction, Failure> {
        let mut all = self.lock();
        let number = u32::try_from(all.len()).ok().and_then(|count| FIRST.checked_add(count));
        // In C it is an enum.
        let number = number.filter(|number| c_int::try_from(*number).is_ok()).ok_or_else(|| {
            Failure::argument("the numbers for reductions of this group are used up: make another group")
        })?;
        all.push(Some(Arc::new(reduction)));
        Ok(number)
    }

    fn find(&self, number: brv_reduction) -> Option<Arc<UserReduction>> {
        self.lock().get(index(number)?)?.clone()
    }

    fn remove(&self, number: brv_reduction) -> Option<Arc<UserReduction>> {
        self.lock().get_mut(index(number)?)?.take()
    }

    /// Nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Numbered>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn index(number: brv_reduction) -> Option<usize> {
    number.checked_sub(FIRST).map(|index| index as usize)
}

fn unknown(number: brv_reduction) -> Failure {
    Failure::argument(format!(
        "reduction is {number}, which is not registered with this group: use brv_reduction_register"
    ))
}

/// The reduction with this number, of elements of a type.
pub(super) fn reducer(
    reductions: &Reductions,
    number: brv_reduction,
    data: DataType,
) -> Result<Reducer, Failure> {
    if number < FIRST {
        return Ok(Reducer::of(data, element::reduction(number)?)?);
    }
    let user = reductions.find(number).ok_or_else(|| unknown(number))?;
    if data != DataType::Bytes && data.bytes() != user.bytes() {
        let (name, found, expected) = (user.name(), data.bytes(), user.bytes());
        return Err(Failure::argument(format!(
            "type is {data} of {found} bytes, but the elements of {name:?} have {expected}: use a type of \
             that size, or BRV_BYTES"
        )));
    }
    Ok(Reducer::User(user, data))
}

/// The program's function and what it is called with.
struct Function {
    function: unsafe extern "C" fn(*mut c_void, *const c_void, usize, *mut c_void) -> c_int,
    user_data: *mut c_void,
}

// SAFETY: the pointer is only handed to the program's function, which may be called on any thread
// (`brv_reduction_register`).
unsafe impl Send for Function {}
// SAFETY: as above; also on several threads at once.
unsafe impl Sync for Function {}

impl Function {
    fn combine(&self, into: &mut [u8], from: &[u8]) -> Result<(), i32> {
        let (place, from, bytes) = (into.as_mut_ptr().cast(), from.as_ptr().cast(), into.len());
        // SAFETY: the program guarantees the function; both slices have `bytes` bytes.
        match in_reduction(|| unsafe { (self.function)(place, from, bytes, self.user_data) }) {
            0 => Ok(()),
            status => Err(status),
        }
    }
}

/// Registers a reduction of the program with a group.
///
/// # Safety
/// `group` is NULL or a live group; `name` is NULL or a string; `reduction` is NULL or may be written. Until
/// the reduction is unregistered, or the group freed, and the calls with it have ended, any thread may call
/// `function` with `user_data`, also several at once: it combines vectors as the header says, and does not
/// unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_reduction_register(
    group: *mut brv_group,
    name: *const c_char,
    type_size: usize,
    function: brv_reduce_function,
    user_data: *mut c_void,
    reduction: *mut brv_reduction,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        check(name, "name")?;
        check(reduction, "reduction")?;
        // SAFETY: the caller in C guarantees a string.
        let text = unsafe { CStr::from_ptr(name) };
        let name = text.to_str().ok().filter(|name| (1..=MAX_NAME_BYTES).contains(&name.len()));
        let name = name.ok_or_else(|| {
            Failure::argument(format!("name is {text:?}, expected UTF-8 of 1 to {MAX_NAME_BYTES} bytes"))
        })?;
        let Some(function) = function else {
            return Err(Failure::argument("function is NULL, expected a function"));
        };
        if type_size == 0 || isize::try_from(type_size).is_err() {
            return Err(Failure::argument(format!(
                "type_size is {type_size}, expected the bytes of an element"
            )));
        }
        let function = Function { function, user_data };
        let combine = move |into: &mut [u8], from: &[u8]| function.combine(into, from);
        let number = shared.reductions.add(UserReduction::new(name, type_size, combine))?;
        // SAFETY: checked above; the caller in C guarantees that it may be written.
        unsafe { reduction.write(number) };
        Ok(())
    })
}

/// Forgets a reduction of the program. Calls that have begun go on with it.
///
/// # Safety
/// `group` is NULL or a live group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brv_reduction_unregister(
    group: *mut brv_group,
    reduction: brv_reduction,
) -> brv_status {
    guard(|| {
        // SAFETY: the caller in C guarantees a live group.
        let shared = unsafe { group_of(group) }?.shared();
        shared.reductions.remove(reduction).map(drop).ok_or_else(|| unknown(reduction))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduction(name: &str) -> UserReduction {
        UserReduction::new(name, 8, |_: &mut [u8], _: &[u8]| Ok(()))
    }

    #[test]
    fn numbers_are_not_used_again() {
        let reductions = Reductions::default();
        assert_eq!(reductions.add(reduction("first")).unwrap(), 256);
        assert_eq!(reductions.add(reduction("second")).unwrap(), 257);
        assert_eq!(reductions.remove(256).unwrap().name(), "first");
        assert!(reductions.remove(256).is_none() && reductions.find(256).is_none());
        assert_eq!(reductions.add(reduction("third")).unwrap(), 258);
        assert_eq!(reductions.find(257).unwrap().name(), "second");
        assert!(reductions.find(259).is_none() && reductions.find(255).is_none());
    }

    #[test]
    fn elements_of_another_size_are_refused() {
        let reductions = Reductions::default();
        let number = reductions.add(reduction("pairs")).unwrap();
        for data in [DataType::F64, DataType::U64, DataType::Bytes] {
            assert_eq!(reducer(&reductions, number, data).unwrap().size(), 8);
        }
        let refused = reducer(&reductions, number, DataType::F32).unwrap_err();
        assert!(refused.text().contains("use a type of that size, or BRV_BYTES"), "{refused:?}");
        assert!(reducer(&reductions, number + 1, DataType::F64).is_err());
        assert!(reducer(&reductions, 9, DataType::F64).unwrap_err().text().contains("(1 to 8)"));
    }
}
