import type { AnnotationQuery, Dashboard, DataQuery } from "@grafana/schema";

// A type whose enums may be given as the plain values that JSON has for them.
export type Values<T> = 0 extends 1 & T
  ? T // any stays any
  : T extends string
    ? `${T}`
    : T extends (infer Each)[]
      ? Values<Each>[]
      : T extends object
        ? { [Key in keyof T]: Values<T[Key]> }
        : T;

// What the two sources of our annotations read beside the fields that all sources share.
type OfGrafana = DataQuery & { type: "tags" | "dashboard"; tags: string[]; matchAny: boolean; limit: number };
type OfPrometheus = DataQuery & { expr: string };
type Said = { titleFormat: string; textFormat: string; step: string };
type Annotation = AnnotationQuery<OfGrafana> | (AnnotationQuery<OfPrometheus> & Said);

export type Ours = Values<Omit<Dashboard, "annotations"> & { annotations: { list: Annotation[] } }>;
