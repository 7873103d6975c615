// SPDX-License-Identifier: Apache-2.0
// c = a + b for n elements. The tile has a static size, so the coordinate sets of the views cut it off at n.

#all = affine_set<(d0)[s0] : (d0 >= 0, -d0 + s0 - 1 >= 0)>
#tile = affine_set<(d0) : (d0 >= 0, -d0 + 1023 >= 0)>
#order = affine_map<(d0) -> (d0)>

func.func @vector_add_dynamic(%a: index, %b: index, %c: index, %n: index) {
  %zero = arith.constant 0 : index
  %A = ktdp.construct_memory_view %a, sizes: [%n], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<?xf32>
  %B = ktdp.construct_memory_view %b, sizes: [%n], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<?xf32>
  %C = ktdp.construct_memory_view %c, sizes: [%n], strides: [1] {coordinate_set = #all, memory_space = #ktdp.memory_space<global>} : memref<?xf32>
  %at = ktdp.construct_access_tile %A[%zero] {access_tile_set = #tile, access_tile_order = #order} : memref<?xf32> -> <1024xindex>
  %bt = ktdp.construct_access_tile %B[%zero] {access_tile_set = #tile, access_tile_order = #order} : memref<?xf32> -> <1024xindex>
  %ct = ktdp.construct_access_tile %C[%zero] {access_tile_set = #tile, access_tile_order = #order} : memref<?xf32> -> <1024xindex>
  %x = ktdp.load %at : <1024xindex> -> tensor<1024xf32>
  %y = ktdp.load %bt : <1024xindex> -> tensor<1024xf32>
  %z = arith.addf %x, %y : tensor<1024xf32>
  ktdp.store %z, %ct : tensor<1024xf32>, <1024xindex>
  return
}
