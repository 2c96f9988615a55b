//! The handle of cuDNN and its descriptors.

use std::ffi::c_void;

use cudarc::cudnn::sys;

use crate::{Result, library::Cudnn};
use sys::{
    cudnnBackendAttributeName_t as Name, cudnnBackendAttributeType_t as Type,
    cudnnBackendDescriptorType_t as Kind,
};

/// A handle, which lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct Handle {
    library: &'static Cudnn,
    raw: sys::cudnnHandle_t,
}

impl Handle {
    /// Creates a handle for the GPU whose context is current.
    pub fn new(library: &'static Cudnn) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle, and a context is current.
        library.check("cudnnCreate", unsafe { (library.cudnnCreate)(&raw mut raw) })?;
        Ok(Self { library, raw })
    }

    /// Creates a descriptor, which is not finalized.
    pub fn descriptor(&self, kind: Kind) -> Result<Descriptor> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a live descriptor.
        let status = unsafe { (self.library.cudnnBackendCreateDescriptor)(kind, &raw mut raw) };
        self.library.check("cudnnBackendCreateDescriptor", status)?;
        Ok(Descriptor { library: self.library, raw })
    }

    /// Sets the attribute of a descriptor that names this handle.
    pub fn set_in(&self, descriptor: &Descriptor, name: Name) -> Result<()> {
        descriptor.set(name, Type::CUDNN_TYPE_HANDLE, &[self.raw])
    }

    /// Issues a plan on a stream, with the pointers of a finalized variant pack.
    pub fn execute(&self, plan: &Descriptor, variant: &Descriptor, stream: u64) -> Result<()> {
        // SAFETY: handle, stream and descriptors are live, and the variant pack has memory for all that the plan reads and writes.
        unsafe {
            let status = (self.library.cudnnSetStream)(self.raw, stream as sys::cudaStream_t);
            self.library.check("cudnnSetStream", status)?;
            let status = (self.library.cudnnBackendExecute)(self.raw, plan.raw, variant.raw);
            self.library.check("cudnnBackendExecute", status)
        }
    }
}

/// A descriptor.
pub(super) struct Descriptor {
    library: &'static Cudnn,
    raw: sys::cudnnBackendDescriptor_t,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is live, and nothing else has its pointer. A failure loses memory of the host.
        unsafe { (self.library.cudnnBackendDestroyDescriptor)(self.raw) };
    }
}

impl Descriptor {
    /// Sets an attribute to elements of the given type.
    pub fn set<T: Copy>(&self, name: Name, of: Type, values: &[T]) -> Result<()> {
        let (len, values) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: the descriptor is live; callers pass elements of the type that `of` names, and their number.
        let status = unsafe { (self.library.cudnnBackendSetAttribute)(self.raw, name, of, len, values) };
        self.library.check("cudnnBackendSetAttribute", status)
    }

    /// Sets an attribute to numbers.
    pub fn set_numbers(&self, name: Name, values: &[i64]) -> Result<()> {
        self.set(name, Type::CUDNN_TYPE_INT64, values)
    }

    /// Sets an attribute to other descriptors.
    pub fn set_descriptors(&self, name: Name, values: &[&Self]) -> Result<()> {
        let raw: Vec<_> = values.iter().map(|it| it.raw).collect();
        self.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw)
    }

    /// Finishes the descriptor.
    pub fn finalize(&self) -> Result<()> {
        // SAFETY: the descriptor is live.
        let status = unsafe { (self.library.cudnnBackendFinalize)(self.raw) };
        self.library.check("cudnnBackendFinalize", status)
    }

    /// Returns a number.
    pub fn number(&self, name: Name) -> Result<i64> {
        let mut found = 0_i64;
        self.get(name, Type::CUDNN_TYPE_INT64, 1, (&raw mut found).cast())?;
        Ok(found)
    }

    /// Lets cuDNN fill descriptors with the elements of an attribute; returns how many it has filled.
    pub fn fill(&self, name: Name, into: &[Self]) -> Result<usize> {
        let mut raw: Vec<_> = into.iter().map(|it| it.raw).collect();
        let pointer = if raw.is_empty() { std::ptr::null_mut() } else { raw.as_mut_ptr().cast() };
        self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, into.len() as i64, pointer)
    }

    /// Writes at most `len` elements of an attribute to `to`; returns how many there are.
    fn get(&self, name: Name, of: Type, len: i64, to: *mut c_void) -> Result<usize> {
        let mut count = 0_i64;
        // SAFETY: the descriptor is live, and callers pass memory for so many elements of the type that `of` names.
        let status =
            unsafe { (self.library.cudnnBackendGetAttribute)(self.raw, name, of, len, &raw mut count, to) };
        self.library.check("cudnnBackendGetAttribute", status)?;
        Ok(count.max(0) as usize)
    }
}
