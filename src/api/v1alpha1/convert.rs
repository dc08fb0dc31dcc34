//! Conversion of whole objects, both ways, without a loss.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::kept::Kept;
use super::rules;
use crate::SPECS;
use crate::minicluster::MiniClusterSpec;
use crate::schema::fits;

/// `apiVersion` of the version before.
pub const V1ALPHA1: &str = "flux-framework.org/v1alpha1";
/// `apiVersion` of the version that is stored.
pub const V1ALPHA2: &str = "flux-framework.org/v1alpha2";

/// Annotation of an object in v1alpha2: what only v1alpha1 can say of it. JSON; not for people.
const KEPT_V1ALPHA1: &str = "tributary.dev/kept-v1alpha1";
/// Annotation of an object in v1alpha1: what only v1alpha2 can say of it.
const KEPT_V1ALPHA2: &str = "tributary.dev/kept-v1alpha2";

/// The annotations that hold what the other version can say of an object.
pub const KEPT: [&str; 2] = [KEPT_V1ALPHA1, KEPT_V1ALPHA2];

/// What stands in the place of that if it is too large: this object can only be looked at in v1alpha1.
const TOO_LARGE: &str = "too large: edit this MiniCluster as v1alpha2";

/// The most bytes that Kubernetes takes in all annotations of an object, keys and values: `TotalAnnotationSizeLimitB` of
/// apimachinery. One object with more would be an error in each list that it is part of, for everybody.
const MOST_ANNOTATIONS: usize = 256 << 10;

/// Why an object cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// It is no MiniCluster.
    #[error("kind {kind:?} is not known: only MiniCluster is converted")]
    Kind {
        /// What it says it is.
        kind: String,
    },
    /// It is of another version, or is wanted in another one.
    #[error("version {version:?} is not known: there are {V1ALPHA1} and {V1ALPHA2}")]
    Version {
        /// The `apiVersion`.
        version: String,
    },
    /// No API server has it: what is converted could not be said in it.
    #[error("{field} is no object")]
    Metadata {
        /// What is no object.
        field: &'static str,
    },
    /// What v1alpha2 says of it is here, and cannot be read.
    #[error("what it keeps of the other version is too large, or has too many fields")]
    Kept,
    /// What v1alpha1 cannot say of it is not here, and would be lost.
    #[error("what v1alpha1 cannot say of this MiniCluster is too large to be edited as v1alpha1: use v1alpha2")]
    TooLarge,
}

/// `object` in the version `to`, which is an `apiVersion`. Only `apiVersion`, `spec` and annotations change: the status
/// is the same in both versions.
///
/// Converted there and back an object is what it was. A field that the other version has not is kept in an annotation,
/// and given up if what stands for it there was edited meanwhile.
///
/// An object of which v1alpha1 can say too little to keep the rest in an annotation can be read in v1alpha1, not written.
///
/// # Errors
/// [`ConvertError`], for an object that is no MiniCluster of either version, and for one that was read so. No spec is refused:
/// whoever wants to carry it out judges it.
pub fn convert(object: &Value, to: &str) -> Result<Value, ConvertError> {
    convert_where(object, to, |_| true)
}

/// As [`convert`], but what is kept of the other version is looked at only if it `is_readable`. Otherwise it stays where it is
/// in v1alpha1, where anybody may have made it up; in v1alpha2 it would be lost.
///
/// # Errors
/// As [`convert`].
pub fn convert_where(object: &Value, to: &str, is_readable: impl Fn(&str) -> bool) -> Result<Value, ConvertError> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, from) = (text("kind"), text("apiVersion"));
    if kind != "MiniCluster" {
        return Err(ConvertError::Kind { kind });
    }
    let way = match (from.as_str(), to) {
        (V1ALPHA1, V1ALPHA2) => Way {
            there: rules::forward,
            back: rules::back,
            taken: KEPT_V1ALPHA2,
            left: KEPT_V1ALPHA1,
            fits: |spec| MiniClusterSpec::deserialize(spec).is_ok(),
        },
        (V1ALPHA2, V1ALPHA1) => Way {
            there: rules::back,
            back: rules::forward,
            taken: KEPT_V1ALPHA1,
            left: KEPT_V1ALPHA2,
            fits: |spec| fits(spec, &SPECS.v1alpha1),
        },
        (V1ALPHA1 | V1ALPHA2, to) if from == to => return Ok(object.clone()),
        (V1ALPHA1 | V1ALPHA2, _) => return Err(ConvertError::Version { version: to.to_owned() }),
        _ => return Err(ConvertError::Version { version: from }),
    };
    check_metadata(object)?;
    if to == V1ALPHA2 && annotation(object, KEPT_V1ALPHA2) == Some(TOO_LARGE) {
        return Err(ConvertError::TooLarge);
    }
    let readable = annotation(object, way.taken).is_none_or(is_readable);
    if to == V1ALPHA2 && !readable {
        return Err(ConvertError::Kept);
    }
    let mut converted = object.clone();
    converted["apiVersion"] = to.into();
    if let Some(spec) = object.get("spec").filter(|spec| spec.is_object()) {
        converted["spec"] = way.convert(spec, &mut converted["metadata"], readable);
    }
    Ok(converted)
}

/// Whether annotations can be written into it.
fn check_metadata(object: &Value) -> Result<(), ConvertError> {
    for (field, pointer) in [("metadata", "/metadata"), ("metadata.annotations", "/metadata/annotations")] {
        if object.pointer(pointer).is_some_and(|section| !section.is_null() && !section.is_object()) {
            return Err(ConvertError::Metadata { field });
        }
    }
    Ok(())
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// A MiniCluster of v1alpha2, of which this is the metadata, as it is shown in v1alpha1 if its spec costs too much to be
/// converted: without. As with [`TOO_LARGE`] at all times, nothing of this object is stored.
pub fn without_spec(mut metadata: Map<String, Value>) -> Value {
    let annotations = metadata.entry("annotations").or_insert(Value::Null);
    let mut all = annotations.as_object_mut().map(std::mem::take).unwrap_or_default();
    all.insert(KEPT_V1ALPHA2.to_owned(), TOO_LARGE.into());
    fit(&mut all);
    *annotations = Value::Object(all);
    json!({"apiVersion": V1ALPHA1, "kind": "MiniCluster", "metadata": metadata, "spec": {}})
}

/// Has annotations fit into an object of v1alpha1. What is left of them is for looking at: with [`TOO_LARGE`] among them,
/// nothing of this object is stored, so nothing is lost.
fn fit(annotations: &mut Map<String, Value>) {
    let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let all = |annotations: &Map<String, Value>| annotations.iter().map(size).sum::<usize>();
    if all(annotations) > MOST_ANNOTATIONS {
        annotations.insert(KEPT_V1ALPHA2.to_owned(), TOO_LARGE.into());
    }
    while all(annotations) > MOST_ANNOTATIONS {
        let others = annotations.iter().filter(|(key, _)| *key != KEPT_V1ALPHA2);
        let Some(largest) = others.max_by_key(|one| size(*one)).map(|(key, _)| key.clone()) else { return };
        annotations.remove(&largest);
    }
}

/// One direction.
struct Way {
    there: fn(&Value) -> Value,
    back: fn(&Value) -> Value,
    /// The annotation that holds what only the target can say.
    taken: &'static str,
    /// The annotation for what only the source can say.
    left: &'static str,
    /// Whether a spec can be read in the target's version.
    fits: fn(&Value) -> bool,
}

impl Way {
    fn convert(&self, spec: &Value, metadata: &mut Value, readable: bool) -> Value {
        let mut converted = (self.there)(spec);
        let mut annotations = match metadata.get_mut("annotations").map(Value::take) {
            Some(Value::Object(annotations)) => annotations,
            _ => Map::new(),
        };
        // One that nobody can read any more stays where it is. So does one that was made up: what is converted is stored and
        // shown without being looked at by the API server again, and has to be readable for everybody.
        let kept = annotations.get(self.taken).filter(|_| readable).and_then(Value::as_str);
        if let Some(kept) = kept.and_then(Kept::read) {
            let mut restored = converted.clone();
            kept.restore(&mut restored, spec);
            if (self.fits)(&restored) || !(self.fits)(&converted) {
                converted = restored;
                annotations.remove(self.taken);
            }
        }
        annotations.remove(self.left);
        let mut lost = Kept::of(spec, &(self.back)(&converted));
        if !lost.is_empty() {
            lost.find_counterparts(spec, &converted, self.there);
            let text = serde_json::to_string(&lost).expect("JSON goes into text");
            annotations.insert(self.left.to_owned(), text.into());
            // The other way, whoever writes so much is told by the API server, and nobody else.
            if self.left == KEPT_V1ALPHA2 {
                fit(&mut annotations);
            }
        }
        if !annotations.is_empty() {
            metadata["annotations"] = Value::Object(annotations);
        } else if let Value::Object(metadata) = metadata {
            metadata.remove("annotations");
        }
        converted
    }
}
