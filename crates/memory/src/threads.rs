//! The variables of threads: made when a thread begins, while too little memory is still an error.
//!
//! The C library makes a thread's variables of a library when the thread uses the first of them, and registers each
//! destructor with a request of its own. If it finds no memory for these requests, it ends the process. So a thread
//! that begins makes them at once, after a request that can fail has shown that there is room for them.

use crate::requests::OutOfMemory;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;

/// Bytes that the variables of a thread and its first steps take at most, without the variables of other libraries.
/// Below the size for which the C library makes maps of their own: the freed block stays where the thread allocates.
const ROOM: usize = 96 << 10;

/// Bytes of the stack of a thread, as in the standard library.
const STACK: usize = 2 << 20;

/// Start a thread that does some work, which begins with [`begin`]. Linux shows the first 15 bytes of the name. The
/// standard library's function would end the process if it found no memory for the handle of the thread.
///
/// # Errors
/// There is too little memory, or another limit of the system.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    room(ROOM).map_err(|_| io::ErrorKind::OutOfMemory)?;
    #[cfg(not(unix))]
    return std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work).map(drop);
    #[cfg(unix)]
    {
        let mut shown = [0; 16];
        shown.iter_mut().zip(name.bytes().take(15)).for_each(|(shown, byte)| *shown = byte);
        let work: Box<Work> = Box::new(Box::new(move || {
            #[cfg(target_os = "linux")]
            // SAFETY: the name ends with a zero.
            unsafe {
                libc::prctl(libc::PR_SET_NAME, shown.as_ptr());
            }
            work();
        }));
        let argument = Box::into_raw(work);
        // SAFETY: the attributes are initialised before their use. If the thread starts, it owns `argument`.
        let failure = unsafe {
            let (mut attributes, mut thread) = (MaybeUninit::uninit(), MaybeUninit::uninit());
            libc::pthread_attr_init(attributes.as_mut_ptr());
            libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
            libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
            let failure = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, argument.cast());
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            failure
        };
        if failure == 0 {
            return Ok(());
        }
        // SAFETY: no thread has started, so `argument` is still owned here.
        drop(unsafe { Box::from_raw(argument) });
        Err(io::Error::from_raw_os_error(failure))
    }
}

type Work = Box<dyn FnOnce() + Send>;

#[cfg(unix)]
extern "C" fn run(work: *mut c_void) -> *mut c_void {
    // SAFETY: `start` passes a box of this type, once.
    let work = unsafe { Box::from_raw(work.cast::<Work>()) };
    work();
    std::ptr::null_mut()
}

/// Make the variables of this thread, of all libraries in this process.
///
/// # Errors
/// There is too little memory for them. The thread has used none of its variables, and should end.
pub fn begin() -> Result<(), OutOfMemory> {
    room(ROOM)?;
    libraries::make_variables()?;
    // A thread of rayon makes this variable, which has a destructor, when it first looks for work.
    drop(crossbeam_epoch::pin());
    Ok(())
}

/// Fail if the C library's allocator, which the variables come from, has no block of this size.
fn room(size: usize) -> Result<(), OutOfMemory> {
    #[cfg(unix)]
    // SAFETY: the block is freed, and not used. Without `black_box` the compiler would remove both calls.
    unsafe {
        let block = std::hint::black_box(libc::malloc(size));
        if block.is_null() {
            return Err(OutOfMemory(size));
        }
        libc::free(block);
    }
    #[cfg(not(unix))]
    let _ = size;
    Ok(())
}

/// The variables of other libraries, such as NumPy's and those of the library for C++.
#[cfg(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64"))]
mod libraries {
    use super::{OutOfMemory, ROOM, room};
    use std::ffi::{c_int, c_ulong, c_void};

    /// The place of a variable: the number of its library, and its offset there.
    #[repr(C)]
    struct Place {
        library: c_ulong,
        offset: c_ulong,
    }

    unsafe extern "C" {
        fn __tls_get_addr(place: *const Place) -> *mut c_void;
    }

    /// Libraries whose variables this thread lacks, and the total size of those variables.
    #[derive(Default)]
    struct Missing {
        libraries: Vec<c_ulong>,
        size: usize,
    }

    pub(super) fn make_variables() -> Result<(), OutOfMemory> {
        let mut missing = Missing::default();
        // SAFETY: the function is called before this call returns, with this pointer.
        unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut missing).cast()) };
        room(ROOM + missing.size)?;
        for library in missing.libraries {
            // SAFETY: the library is loaded: libraries of Python's modules stay loaded. The function returns the
            // address of this thread's variables of the library, and makes them if necessary.
            unsafe { __tls_get_addr(&Place { library, offset: 0 }) };
        }
        Ok(())
    }

    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: libc::size_t, missing: *mut c_void) -> c_int {
        // SAFETY: `make_variables` passes its own value, and the C library a description that is valid for this call.
        let (info, missing) = unsafe { (&*info, &mut *missing.cast::<Missing>()) };
        if info.dlpi_tls_modid != 0 && info.dlpi_tls_data.is_null() {
            // SAFETY: the description has this many headers.
            let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
            let of_variables = headers.iter().find(|header| header.p_type == libc::PT_TLS);
            missing.size += of_variables.map_or(0, |header| (header.p_memsz + header.p_align) as usize);
            missing.libraries.push(info.dlpi_tls_modid as c_ulong);
        }
        0
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
mod libraries {
    pub(super) fn make_variables() -> Result<(), super::OutOfMemory> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_begins_once_and_again() {
        let (sender, receiver) = std::sync::mpsc::channel();
        super::start("test", move || sender.send([super::begin(), super::begin()]).unwrap()).unwrap();
        assert_eq!(receiver.recv(), Ok([Ok(()), Ok(())]));
    }

    #[test]
    fn a_room_beyond_all_memory_is_an_error() {
        assert_eq!(super::room(usize::MAX / 2), Err(super::OutOfMemory(usize::MAX / 2)));
    }
}
